// Under Vitest: `npx vitest run`. Under Jest: `node --experimental-vm-modules node_modules/.bin/jest --testMatch '**/*.test.mjs'`.
import { cases, options } from './orders-cases.mjs'
import { useServer } from 'portcullis-lock/testing'

const runner = process.env.VITEST ? await import('vitest') : globalThis
const server = useServer(runner, options)
for (const [name, run] of Object.entries(cases)) runner.test(name, () => run(server))
