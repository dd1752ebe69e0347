// ioredis: a lock by hand, custom commands, pipelines, transactions, blocking pops, pub/sub, scans, reconnection.
import Redis from 'ioredis'
import { Witness, assert, equal, host, port, protocol, rejects, run, sleep, workers } from './suite.mjs'

const options = { host, port, protocol, maxRetriesPerRequest: 3 }
const client = new Redis(options)
client.defineCommand('unlock', {
  numberOfKeys: 1,
  lua: "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
})

async function locked(name, token, lease, work) {
  while ((await client.set(name, token, 'PX', lease, 'NX')) !== 'OK') await sleep(1)
  await work()
  return client.unlock(name, token)
}

await run(
  {
    async 'mutual exclusion'() {
      const witness = new Witness()
      await workers(8, async (worker) => {
        for (let i = 0; i < 15; i++) equal(await locked('lock', `w${worker}`, 10_000, () => witness.visit(() => sleep(1))), 1)
      })
      witness.verdict(120)
    },
    async 'a dead holder is outlived'() {
      await client.set('lock', 'dead', 'PX', 200, 'NX')
      const start = Date.now()
      equal(await locked('lock', 'next', 1000, async () => {}), 1)
      assert(Date.now() - start > 100)
    },
    async 'another owner is refused'() {
      await client.set('lock', 'me', 'PX', 10_000, 'NX')
      equal(await client.unlock('lock', 'you'), 0)
      equal(await client.get('lock'), 'me')
    },
    async 'renewal'() {
      await client.set('lock', 'me', 'PX', 200, 'NX')
      for (let i = 0; i < 3; i++) {
        await sleep(100)
        equal(await client.pexpire('lock', 200), 1)
      }
      assert((await client.pttl('lock')) > 100)
    },
    async 'pipelines and transactions'() {
      equal(await client.pipeline().set('n', 1).incr('n').get('n').exec(), [[null, 'OK'], [null, 2], [null, '2']])
      equal(await client.multi().incr('n').hset('h', 'f', 1).exec(), [[null, 3], [null, 1]])
      await client.watch('n')
      const other = client.duplicate()
      await other.set('n', 0)
      equal(await client.multi().incr('n').exec(), null)
      other.disconnect()
      const wrong = await client.pipeline().set('s', 'x').lpush('s', 1).exec()
      assert(wrong[1][0].message.startsWith('WRONGTYPE'))
      assert((await rejects(client.multi().call('nonsense').exec())).message.startsWith('EXECABORT'))
    },
    async 'waiters are served in order'() {
      const order = []
      const waiting = [0, 1, 2, 3].map(async (number) => {
        const own = client.duplicate()
        await sleep(number * 30)
        order.push([number, (await own.blpop('jobs', 10))[1]])
        own.disconnect()
      })
      await sleep(300)
      await client.rpush('jobs', 'a', 'b', 'c', 'd')
      await Promise.all(waiting)
      equal(order.sort(), [[0, 'a'], [1, 'b'], [2, 'c'], [3, 'd']])
      equal(await client.blpop('jobs', 0.1), null)
    },
    async 'publish and subscribe'() {
      const subscriber = client.duplicate()
      await subscriber.subscribe('news')
      await subscriber.psubscribe('lock:*')
      const got = []
      subscriber.on('message', (channel, message) => got.push([channel, message]))
      subscriber.on('pmessage', (pattern, channel, message) => got.push([pattern, channel, message]))
      equal(await client.publish('news', 'hello'), 1)
      equal(await client.publish('lock:7', 'free'), 1)
      while (got.length < 2) await sleep(5)
      equal(got, [['news', 'hello'], ['lock:*', 'lock:7', 'free']])
      subscriber.disconnect()
    },
    async 'scans'() {
      const names = Array.from({ length: 300 }, (_, i) => `scan:${i}`)
      await client.mset(Object.fromEntries(names.map((name) => [name, '1'])))
      const seen = new Set()
      for await (const keys of client.scanStream({ match: 'scan:*', count: 40 })) keys.forEach((key) => seen.add(key))
      equal(seen.size, 300)
    },
    async 'a killed connection comes back'() {
      const victim = client.duplicate()
      victim.on('error', () => {})
      const id = await victim.client('ID')
      equal(await client.client('KILL', 'ID', id), 1)
      await sleep(100)
      equal(await victim.ping(), 'PONG')
      victim.disconnect()
    },
    async 'scripts survive a flush'() {
      await client.set('lock', 'me')
      await client.script('FLUSH')
      equal(await client.unlock('lock', 'me'), 1)
    },
  },
  { before: () => client.flushall(), after: async () => client.disconnect() },
)
