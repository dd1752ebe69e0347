// An application's tests with nothing but ioredis: the server's clock is theirs, so that nothing in them waits.
import Redis from 'ioredis'
import { assert, equal, host, port, protocol, run, sleep } from './suite.mjs'

const client = new Redis({ host, port, protocol })
const clock = (...args) => client.call('CLOCK', ...args)

async function until(condition) {
  const end = performance.now() + 10_000
  while (!(await condition())) {
    assert(performance.now() < end, 'it does not come to that')
    await sleep(1)
  }
}

await run(
  {
    async 'a wait of thirty seconds'() {
      const waiter = client.duplicate()
      let done = false
      const popped = waiter.blpop('jobs', 30).finally(() => (done = true))
      await until(async () => (await client.info('clients')).includes('blocked_clients:1\r\n'))
      equal(await clock('ADVANCE', 29_999), 'OK')
      await client.ping()
      assert(!done)
      const start = performance.now()
      await clock('ADVANCE', 1)
      equal(await popped, null)
      const took = performance.now() - start
      assert(took < 50, `${took} ms`)
      waiter.disconnect()
    },
    async 'a lock of ten seconds'() {
      const take = (token) => client.set('lock', token, 'PX', 10_000, 'NX')
      equal(await take('a'), 'OK')
      await clock('ADVANCE', 9999)
      equal(await take('b'), null)
      await clock('ADVANCE', 1)
      equal(await take('b'), 'OK')
      equal(await client.pttl('lock'), 10_000)
    },
    async 'time stands still and is set'() {
      const now = await client.time()
      equal(await client.time(), now)
      await clock('SET', 4_000_000_000_000)
      equal((await client.time()).map(Number), [4_000_000_000, 0])
      await client.set('k', 1, 'PX', 1000)
      await clock('SKEW', -3_600_000)
      equal((await client.time()).map(Number), [3_999_996_400, 0])
      equal(await client.pttl('k'), 1000)
    },
  },
  {
    before: async () => {
      await clock('FREEZE')
      await client.flushall()
    },
    after: () => client.quit(),
  },
)
