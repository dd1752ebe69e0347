// ioredis' Cluster: a lock by hand, custom commands, pipelines, transactions and pub/sub, on a cluster of one node.
import Redis from 'ioredis'
import { Witness, assert, equal, host, port, protocol, rejects, run, sleep, workers } from './suite.mjs'

const cluster = new Redis.Cluster([{ host, port }], { redisOptions: { protocol }, slotsRefreshTimeout: 5000 })
cluster.defineCommand('unlock', {
  numberOfKeys: 1,
  lua: "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
})
cluster.defineCommand('renew', {
  numberOfKeys: 1,
  lua: "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end",
})

async function acquire(name, token, lease) {
  while ((await cluster.set(name, token, 'PX', lease, 'NX')) !== 'OK') await sleep(1)
}

await run(
  {
    async 'one node has all slots'() {
      const [node, ...others] = cluster.nodes('master')
      equal([node.options.port, others.length, cluster.nodes('slave').length], [port, 0, 0])
      equal(await cluster.cluster('KEYSLOT', 'foo'), 12182)
      const [[first, last, [, at]]] = await cluster.cluster('SLOTS')
      equal([first, last, at], [0, 16383, port])
      assert((await cluster.cluster('INFO')).startsWith('cluster_state:ok'))
    },
    async 'mutual exclusion'() {
      const witnesses = [0, 1, 2].map(() => new Witness())
      await workers(8, async (worker) => {
        for (let i = 0; i < 24; i++) {
          const number = (worker + i) % 3
          await acquire(`lock:${number}`, `${worker}:${i}`, 10_000)
          await witnesses[number].visit(() => sleep(1))
          equal(await cluster.unlock(`lock:${number}`, `${worker}:${i}`), 1)
        }
      })
      witnesses.forEach((witness) => witness.verdict(64))
    },
    async 'a dead holder is outlived'() {
      await acquire('lock', 'dead', 200)
      const start = Date.now()
      await acquire('lock', 'next', 1000)
      assert(Date.now() - start > 100)
      equal(await cluster.unlock('lock', 'dead'), 0)
      equal(await cluster.get('lock'), 'next')
    },
    async 'another owner is refused'() {
      await acquire('lock', 'me', 10_000)
      equal(await cluster.set('lock', 'you', 'PX', 10, 'NX'), null)
      equal([await cluster.unlock('lock', 'you'), await cluster.renew('lock', 'you', 1)], [0, 0])
      equal(await cluster.get('lock'), 'me')
      equal([await cluster.unlock('lock', 'me'), await cluster.get('lock')], [1, null])
    },
    async 'renewal'() {
      await acquire('lock', 'me', 200)
      for (let i = 0; i < 4; i++) {
        await sleep(100)
        equal(await cluster.renew('lock', 'me', 200), 1)
      }
      await sleep(300)
      equal(await cluster.renew('lock', 'me', 200), 0)
    },
    async 'scripts survive a flush'() {
      await acquire('lock', 'me', 10_000)
      await Promise.all(cluster.nodes().map((node) => node.script('FLUSH')))
      equal(await cluster.unlock('lock', 'me'), 1)
    },
    async 'pipelines, transactions and slots'() {
      equal(await cluster.pipeline().set('{n}a', 1).incr('{n}a').get('{n}a').exec(), [[null, 'OK'], [null, 2], [null, '2']])
      equal(await cluster.multi().incr('{n}a').hset('{n}h', 'f', 1).exec(), [[null, 3], [null, 1]])
      assert((await rejects(cluster.mset('a', 1, 'b', 2))).message.startsWith('CROSSSLOT'))
      assert((await rejects(cluster.multi().set('a', 1).set('b', 1).exec())).message.includes('same'))
    },
    async 'a released lock is announced'() {
      const waiter = new Redis.Cluster([{ host, port }], { redisOptions: { protocol } })
      const got = []
      waiter.on('message', (channel, message) => got.push([channel, message]))
      await waiter.subscribe('released')
      equal(await cluster.publish('released', 'lock'), 1)
      while (got.length < 1) await sleep(5)
      equal(got, [['released', 'lock']])
      waiter.disconnect()
    },
    async 'shard channels'() {
      const waiter = new Redis.Cluster([{ host, port }], { redisOptions: { protocol }, shardedSubscribers: true })
      const got = []
      waiter.on('smessage', (channel, message) => got.push([channel, message]))
      await waiter.ssubscribe('{n}released')
      equal(await cluster.spublish('{n}released', 'lock'), 1)
      while (got.length < 1) await sleep(5)
      equal(got, [['{n}released', 'lock']])
      waiter.disconnect()
    },
    async 'a killed connection comes back'() {
      const [node] = cluster.nodes('master')
      const id = await node.client('ID')
      await node.client('KILL', 'ID', id, 'SKIPME', 'no').catch(() => {})
      await acquire('lock', 'me', 10_000)
      equal(await cluster.unlock('lock', 'me'), 1)
    },
  },
  { before: () => Promise.all(cluster.nodes('master').map((node) => node.flushall())), after: async () => cluster.disconnect() },
)
