// rate-limiter-flexible: counters with SET NX EX, INCRBY, PTTL, in transactions and in Lua.
import Redis from 'ioredis'
import { BurstyRateLimiter, RateLimiterQueue, RateLimiterRedis } from 'rate-limiter-flexible'
import { assert, equal, host, port, protocol, rejects, run, sleep, workers } from './suite.mjs'

const client = new Redis({ host, port, protocol })
const limiter = (options) => new RateLimiterRedis({ storeClient: client, points: 20, duration: 60, ...options })

async function admitted(rates, tries) {
  let count = 0
  await workers(tries, () => rates.consume('user').then(() => count++, () => {}))
  return count
}

await run(
  {
    async 'a limit is kept'() {
      equal(await admitted(limiter({ keyPrefix: 'a' }), 50), 20)
    },
    async 'a window ends'() {
      const rates = limiter({ keyPrefix: 'b', points: 2, duration: 1 })
      equal(await admitted(rates, 5), 2)
      const refused = await rejects(rates.consume('user'))
      assert(refused.msBeforeNext > 0 && refused.msBeforeNext <= 1000)
      await sleep(1050)
      equal(await admitted(rates, 5), 2)
    },
    async 'penalties, rewards and blocks'() {
      const rates = limiter({ keyPrefix: 'c', points: 5 })
      equal((await rates.penalty('user', 3)).consumedPoints, 3)
      equal((await rates.reward('user', 2)).consumedPoints, 1)
      await rates.block('user', 30)
      assert((await rejects(rates.consume('user'))).msBeforeNext > 25_000)
      equal(await rates.delete('user'), true)
      equal((await rates.consume('user')).remainingPoints, 4)
    },
    async 'bursts'() {
      const rates = new BurstyRateLimiter(limiter({ keyPrefix: 'd', points: 2, duration: 60 }), limiter({ keyPrefix: 'e', points: 3, duration: 60 }))
      equal(await admitted(rates, 10), 5)
    },
    async 'a queue evens out'() {
      const queue = new RateLimiterQueue(limiter({ keyPrefix: 'f', points: 5, duration: 1 }))
      const start = Date.now()
      for (let i = 0; i < 7; i++) await queue.removeTokens(1, 'user')
      assert(Date.now() - start > 300)
    },
  },
  { before: () => client.flushall(), after: async () => client.disconnect() },
)
