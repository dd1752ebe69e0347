// bottleneck: a scheduler whose state is shared through a dozen Lua scripts and pub/sub.
import Bottleneck from 'bottleneck'
import Redis from 'ioredis'
import { Witness, assert, equal, host, port, protocol, run, sleep, workers } from './suite.mjs'

const admin = new Redis({ host, port, protocol })
const limiters = []

function limiter(options) {
  const made = new Bottleneck({ datastore: 'ioredis', Redis, clearDatastore: false, clientOptions: { host, port, protocol }, ...options })
  limiters.push(made)
  return made
}

await run(
  {
    async 'a limit of concurrency holds across processes'() {
      const [one, other] = [1, 2].map(() => limiter({ id: 'concurrency', maxConcurrent: 2 }))
      await Promise.all([one.ready(), other.ready()])
      const witness = new Witness(2)
      await workers(12, (n) => (n % 2 ? one : other).schedule(() => witness.visit(() => sleep(10))))
      witness.verdict(12)
      equal(witness.most, 2)
    },
    async 'starts are spaced'() {
      const one = limiter({ id: 'spacing', minTime: 50 })
      await one.ready()
      const start = Date.now()
      await workers(5, () => one.schedule(() => sleep(0)))
      assert(Date.now() - start >= 190)
    },
    async 'a reservoir is used up and refilled'() {
      const one = limiter({ id: 'reservoir', reservoir: 3 })
      await one.ready()
      await workers(3, () => one.schedule(() => sleep(0)))
      equal(await one.currentReservoir(), 0)
      await one.incrementReservoir(2)
      equal(await one.check(), true)
    },
  },
  {
    before: () => admin.flushall(),
    after: async () => {
      await Promise.all(limiters.map((each) => each.disconnect(false)))
      admin.disconnect()
    },
  },
)
