// An application's tests with nothing but ioredis: the server's clock is theirs, and so is what goes wrong.
import Redis from 'ioredis'
import { assert, equal, host, port, protocol, rejects, run, sleep } from './suite.mjs'

const client = new Redis({ host, port, protocol })
const clock = (...args) => client.call('CLOCK', ...args)
const fault = (...args) => client.call('FAULT', ...args)
// A client of its own that meets the faults for `worker`, and waits no longer than 0.2 s for a reply.
const worker = (options) => client.duplicate({ connectionName: 'worker', commandTimeout: 200, retryStrategy: null, ...options })
const take = (connection, token) => connection.set('lock', token, 'PX', 10_000, 'NX')

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
      equal(await take(client, 'a'), 'OK')
      await clock('ADVANCE', 9999)
      equal(await take(client, 'b'), null)
      await clock('ADVANCE', 1)
      equal(await take(client, 'b'), 'OK')
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
    async 'a lost reply and a naive client'() {
      await fault('ADD', 'lost', 'DROP-REPLY', 'ON', 'set', 'CLIENT', 'worker', 'TIMES', 1)
      const naive = worker()
      equal((await rejects(take(naive, 'naive'))).message, 'Command timed out')
      naive.disconnect()
      // It believes that it has no lock, but nobody can get it before the lease is over.
      const again = worker()
      equal([await take(again, 'naive again'), await take(client, 'other')], [null, null])
      again.disconnect()
      await clock('ADVANCE', 9999)
      equal(await take(client, 'other'), null)
      await clock('ADVANCE', 1)
      equal(await take(client, 'other'), 'OK')
    },
    async 'a lost reply and a client that checks its token'() {
      await fault('ADD', 'lost', 'DROP-REPLY', 'ON', 'set', 'CLIENT', 'worker', 'TIMES', 1)
      let careful = worker()
      const acquire = async (token) => {
        try {
          if ((await take(careful, token)) === 'OK') return true
        } catch {
          // Replies are told apart by their order alone: a connection that has lost one is of no more use.
          careful.disconnect()
          careful = worker()
        }
        return (await careful.get('lock')) === token
      }
      assert(await acquire('careful'))
      equal(await take(client, 'other'), null)
      const unlock = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
      equal(await careful.eval(unlock, 1, 'lock', 'careful'), 1)
      equal(await take(client, 'other'), 'OK')
      assert(!(await acquire('careful')))
      careful.disconnect()
    },
    async 'errors and connections that are lost'() {
      await fault('ADD', 'full', 'ERROR', 'OOM command not allowed', 'ON', 'set', 'TIMES', 1)
      equal((await rejects(client.set('k', 1))).message, 'OOM command not allowed')
      for (const [what, done] of Object.entries({ CLOSE: 0, RESET: 0, 'CLOSE-AFTER': 1, 'RESET-AFTER': 1 })) {
        await client.flushall()
        await fault('ADD', 'cut', what, 'ON', 'set', 'CLIENT', 'worker', 'TIMES', 1)
        const victim = worker({ maxRetriesPerRequest: 0 })
        victim.on('error', () => {})
        assert((await rejects(victim.set('k', 1))) instanceof Error, what)
        equal(await client.exists('k'), done)
      }
    },
  },
  {
    before: async () => {
      await fault('RESET')
      await clock('FREEZE')
      await client.flushall()
    },
    after: () => client.quit(),
  },
)
