// redlock: its algorithm over three servers, by ioredis.
import Redis from 'ioredis'
import Redlock from 'redlock'
import { Witness, assert, host, ports, protocol, rejects, run, sleep, workers } from './suite.mjs'

const clients = ports.map((port) => new Redis({ host, port, protocol }))
const redlock = new Redlock(clients, { retryCount: 500, retryDelay: 5, retryJitter: 5 })
const impatient = new Redlock(clients, { retryCount: 2, retryDelay: 20 })

await run(
  {
    async 'mutual exclusion'() {
      const witness = new Witness()
      await workers(6, async () => {
        for (let i = 0; i < 5; i++) {
          const lock = await redlock.lock('resource', 10_000)
          await witness.visit(() => sleep(1))
          await lock.unlock()
        }
      })
      witness.verdict(30)
    },
    async 'a dead holder is outlived'() {
      await redlock.lock('resource', 300)
      const start = Date.now()
      const lock = await redlock.lock('resource', 1000)
      assert(Date.now() - start > 150)
      await lock.unlock()
    },
    async 'time-outs'() {
      const lock = await redlock.lock('resource', 10_000)
      const error = await rejects(impatient.lock('resource', 1000))
      assert(error.name === 'LockError', error.name)
      await lock.unlock()
    },
    async 'renewal'() {
      let lock = await redlock.lock('resource', 300)
      for (let i = 0; i < 3; i++) {
        await sleep(150)
        lock = await lock.extend(300)
      }
      await lock.unlock()
      await rejects(lock.unlock())
      await rejects(lock.extend(1000))
    },
    async 'one of three servers forgets'() {
      if (clients.length < 3) return
      const lock = await redlock.lock('resource', 10_000)
      await clients[0].flushall()
      await rejects(impatient.lock('resource', 1000))
      await lock.unlock()
    },
    async 'several resources at once'() {
      const lock = await redlock.lock(['a', 'b'], 10_000)
      await rejects(impatient.lock('b', 1000))
      await lock.unlock()
      await (await redlock.lock('b', 1000)).unlock()
    },
  },
  { before: () => Promise.all(clients.map((client) => client.flushall())), after: async () => clients.forEach((client) => client.disconnect()) },
)
