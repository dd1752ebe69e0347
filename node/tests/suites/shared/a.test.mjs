import { useDatabase } from 'portcullis-lock/testing'
import { cases } from './cases.mjs'

const runner = process.env.VITEST ? await import('vitest') : process.env.JEST_WORKER_ID ? globalThis : await import('node:test')
const database = useDatabase(runner)
for (const [name, run] of Object.entries(cases('a', 'b'))) runner.test(name, () => run(database))
