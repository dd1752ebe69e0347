// node-redis: typed replies, scripts, transactions, pools, blocking pops, pub/sub, streams; RESP2 and RESP3.
import { WatchError, createClient, createClientPool, defineScript } from 'redis'
import { Witness, assert, equal, host, port, protocol, rejects, run, sleep, workers } from './suite.mjs'

const options = {
  RESP: protocol,
  socket: { host, port },
  scripts: {
    unlock: defineScript({
      SCRIPT: "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
      NUMBER_OF_KEYS: 1,
      parseCommand(parser, key, token) {
        parser.pushKey(key)
        parser.push(token)
      },
      transformReply: (reply) => reply,
    }),
  },
}
const client = await createClient(options).on('error', () => {}).connect()

await run(
  {
    async 'mutual exclusion'() {
      const witness = new Witness()
      await workers(8, async (worker) => {
        const own = await client.duplicate().connect()
        for (let i = 0; i < 15; i++) {
          while ((await own.set('lock', `w${worker}`, { condition: 'NX', expiration: { type: 'PX', value: 10_000 } })) !== 'OK') await sleep(1)
          await witness.visit(() => sleep(1))
          equal(await own.unlock('lock', `w${worker}`), 1)
        }
        own.destroy()
      })
      witness.verdict(120)
    },
    async 'a dead holder is outlived, another owner refused'() {
      equal(await client.set('lock', 'dead', { condition: 'NX', expiration: { type: 'PX', value: 200 } }), 'OK')
      equal(await client.unlock('lock', 'other'), 0)
      equal(await client.set('lock', 'next', { condition: 'NX' }), null)
      await sleep(250)
      equal(await client.set('lock', 'next', { condition: 'NX' }), 'OK')
    },
    async 'renewal'() {
      await client.set('lock', 'me', { expiration: { type: 'PX', value: 200 } })
      for (let i = 0; i < 3; i++) {
        await sleep(100)
        equal(await client.pExpire('lock', 200), 1)
      }
      equal(await client.get('lock'), 'me')
    },
    async 'transactions'() {
      equal(await client.multi().set('n', '1').incr('n').get('n').exec(), ['OK', 2, '2'])
      const pool = await createClientPool(options).on('error', () => {}).connect()
      await client.set('total', '0')
      await workers(10, async () => {
        for (;;) {
          try {
            await pool.execute(async (own) => {
              await own.watch('total')
              const total = Number(await own.get('total'))
              await own.multi().set('total', String(total + 1)).exec()
            })
            return
          } catch (error) {
            if (!(error instanceof WatchError)) throw error
          }
        }
      })
      equal(await client.get('total'), '10')
      pool.destroy()
    },
    async 'types'() {
      equal(await client.hSet('h', { a: '1', b: '2' }), 2)
      equal({ ...(await client.hGetAll('h')) }, { a: '1', b: '2' })
      equal(await client.sAdd('s', ['x', 'y']), 2)
      equal([...(await client.sMembers('s'))].sort(), ['x', 'y'])
      equal(await client.zAdd('z', [{ value: 'a', score: 1 }, { value: 'b', score: 2.5 }]), 2)
      equal(await client.zRangeWithScores('z', 0, -1), [{ value: 'a', score: 1 }, { value: 'b', score: 2.5 }])
      equal(await client.rPush('l', ['1', '2', '3']), 3)
      equal(await client.lRange('l', 0, -1), ['1', '2', '3'])
      equal(await client.zScore('z', 'b'), 2.5)
      equal(await client.incrByFloat('f', 0.1), '0.1')
    },
    async 'waiting for an element'() {
      const own = await client.duplicate().connect()
      const waiting = own.blPop('jobs', 5)
      await sleep(50)
      await client.rPush('jobs', 'x')
      equal({ ...(await waiting) }, { key: 'jobs', element: 'x' })
      equal(await own.blPop('jobs', 0.1), null)
      own.destroy()
    },
    async 'publish and subscribe'() {
      const subscriber = await client.duplicate().connect()
      const got = []
      await subscriber.subscribe('news', (message, channel) => got.push([channel, message]))
      await subscriber.pSubscribe('lock:*', (message, channel) => got.push([channel, message]))
      await subscriber.sSubscribe('shard', (message, channel) => got.push([channel, message]))
      await client.publish('news', 'hello')
      await client.publish('lock:7', 'free')
      await client.sPublish('shard', 'one')
      while (got.length < 3) await sleep(5)
      equal(got, [['news', 'hello'], ['lock:7', 'free'], ['shard', 'one']])
      subscriber.destroy()
    },
    async 'streams'() {
      await client.xGroupCreate('tasks', 'workers', '0', { MKSTREAM: true })
      const id = await client.xAdd('tasks', '*', { n: '1' })
      const read = await client.xReadGroup('workers', 'w1', { key: 'tasks', id: '>' }, { COUNT: 10 })
      const entries = Array.isArray(read) ? read[0].messages : read.tasks
      equal({ ...entries[0].message }, { n: '1' })
      equal(await client.xAck('tasks', 'workers', id), 1)
    },
    async 'scans and errors'() {
      await client.mSet(Object.fromEntries(Array.from({ length: 200 }, (_, i) => [`scan:${i}`, '1'])))
      const seen = new Set()
      for await (const keys of client.scanIterator({ MATCH: 'scan:*', COUNT: 30 })) keys.forEach((key) => seen.add(key))
      equal(seen.size, 200)
      assert((await rejects(client.sendCommand(['NONSENSE']))).message.startsWith('ERR unknown command'))
      assert((await rejects(client.lPush('scan:1', 'x'))).message.startsWith('WRONGTYPE'))
    },
  },
  { before: () => client.flushAll(), after: async () => client.destroy() },
)
