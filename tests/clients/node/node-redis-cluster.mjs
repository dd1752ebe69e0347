// node-redis' createCluster: a lock by hand, scripts, transactions and pub/sub, on a cluster of one node.
import { createCluster, defineScript } from 'redis'
import { Witness, assert, equal, host, port, protocol, rejects, run, sleep, workers } from './suite.mjs'

const script = (SCRIPT) =>
  defineScript({
    SCRIPT,
    NUMBER_OF_KEYS: 1,
    parseCommand(parser, key, ...rest) {
      parser.pushKey(key)
      parser.push(...rest)
    },
    transformReply: (reply) => reply,
  })

const cluster = await createCluster({
  RESP: protocol,
  rootNodes: [{ socket: { host, port } }],
  scripts: {
    unlock: script("if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"),
    renew: script("if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end"),
  },
})
  .on('error', () => {})
  .connect()

const take = (name, token, lease) => cluster.set(name, token, { condition: 'NX', expiration: { type: 'PX', value: lease } })

async function acquire(name, token, lease) {
  while ((await take(name, token, lease)) !== 'OK') await sleep(1)
}

const everyNode = (work) => Promise.all(cluster.masters.map(async (node) => work(await cluster.nodeClient(node))))

await run(
  {
    async 'one node has all slots'() {
      equal([cluster.masters.length, cluster.replicas.length], [1, 0])
      equal([cluster.masters[0].host, cluster.masters[0].port], [host, port])
      equal(cluster.slots.filter((slot) => slot?.master === cluster.masters[0]).length, 16384)
      await everyNode(async (node) => equal(await node.clusterKeySlot('foo'), 12182))
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
      equal(await take('lock', 'you', 10), null)
      equal([await cluster.unlock('lock', 'you'), await cluster.renew('lock', 'you', '1')], [0, 0])
      equal(await cluster.get('lock'), 'me')
      equal([await cluster.unlock('lock', 'me'), await cluster.get('lock')], [1, null])
    },
    async 'renewal'() {
      await acquire('lock', 'me', 200)
      for (let i = 0; i < 4; i++) {
        await sleep(100)
        equal(await cluster.renew('lock', 'me', '200'), 1)
      }
      await sleep(300)
      equal(await cluster.renew('lock', 'me', '200'), 0)
    },
    async 'scripts survive a flush'() {
      await acquire('lock', 'me', 10_000)
      await everyNode((node) => node.scriptFlush())
      equal(await cluster.unlock('lock', 'me'), 1)
    },
    async 'transactions and slots'() {
      equal(await cluster.multi().set('{n}a', '1').incr('{n}a').get('{n}a').exec(), ['OK', 2, '2'])
      // Given pairs of several slots, the library sends a request to each; as one it is refused.
      equal(await cluster.mSet({ a: '1', b: '2' }), 'OK')
      equal(await cluster.mGet(['a', 'b']), ['1', '2'])
      await everyNode(async (node) => assert((await rejects(node.mSet({ a: '1', b: '2' }))).message.startsWith('CROSSSLOT')))
      const crossing = (await rejects(cluster.multi().set('a', '1').set('b', '2').exec())).message
      assert(crossing.startsWith('CROSSSLOT'), crossing)
    },
    async 'a released lock is announced'() {
      const got = []
      await cluster.subscribe('released', (message, channel) => got.push([channel, message]))
      await cluster.sSubscribe('shard', (message, channel) => got.push([channel, message]))
      equal(await cluster.publish('released', 'lock'), 1)
      equal(await cluster.sPublish('shard', 'lock'), 1)
      while (got.length < 2) await sleep(5)
      equal(got.sort(), [['released', 'lock'], ['shard', 'lock']])
      await cluster.unsubscribe('released')
      await cluster.sUnsubscribe('shard')
    },
  },
  { before: () => everyNode((node) => node.flushAll()), after: async () => cluster.destroy() },
)
