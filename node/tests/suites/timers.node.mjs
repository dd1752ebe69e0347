// Under node:test.
import { after, afterEach, before, beforeEach, mock, test } from 'node:test'
import { useServer } from 'portcullis-lock/testing'
import { cases } from './timers-cases.mjs'

const server = useServer({ before, beforeEach, afterEach, after })
const fake = {
  timers: mock.timers,
  start: () => mock.timers.enable({ apis: ['setTimeout', 'setInterval', 'setImmediate', 'Date'], now: Date.now() }),
  stop: () => mock.timers.reset(),
}
for (const [name, run] of Object.entries(cases(fake))) test(name, () => run(server))
