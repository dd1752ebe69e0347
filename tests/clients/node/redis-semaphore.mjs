// redis-semaphore: mutexes, fair semaphores with permits, RedLock variants, refreshed leases; all in Lua.
import Redis from 'ioredis'
import { MultiSemaphore, Mutex, RedlockMutex, RedlockSemaphore, Semaphore } from 'redis-semaphore'
import { Witness, assert, equal, host, port, ports, protocol, rejects, run, sleep, workers } from './suite.mjs'

const client = new Redis({ host, port, protocol })
const clients = ports.map((port) => new Redis({ host, port, protocol }))
const patient = { lockTimeout: 10_000, acquireTimeout: 50_000, retryInterval: 2 }

async function visits(make, limit, count = 6, rounds = 8) {
  const witness = new Witness(limit)
  await workers(count, async () => {
    for (let i = 0; i < rounds; i++) {
      const lock = make()
      await lock.acquire()
      await witness.visit(() => sleep(2))
      await lock.release()
    }
  })
  witness.verdict(count * rounds)
  return witness
}

await run(
  {
    'mutual exclusion': () => visits(() => new Mutex(client, 'm', patient), 1),
    async 'permits'() {
      const witness = await visits(() => new Semaphore(client, 's', 3, patient), 3)
      equal(witness.most, 3)
    },
    'several permits at once': () => visits(() => new MultiSemaphore(client, 'ms', 4, 2, patient), 2),
    'a mutex over three servers': () => visits(() => new RedlockMutex(clients, 'rm', patient), 1, 4, 4),
    'permits over three servers': () => visits(() => new RedlockSemaphore(clients, 'rs', 2, patient), 2, 4, 4),
    async 'a lease is renewed while it is held'() {
      const mutex = new Mutex(client, 'renewed', { lockTimeout: 300, refreshInterval: 100 })
      await mutex.acquire()
      await sleep(700)
      assert(mutex.isAcquired)
      equal(await new Mutex(client, 'renewed', { acquireTimeout: 50 }).tryAcquire(), false)
      await mutex.release()
    },
    async 'a dead holder is outlived'() {
      await new Mutex(client, 'dead', { lockTimeout: 300, refreshInterval: 0 }).acquire()
      const start = Date.now()
      const next = new Mutex(client, 'dead', patient)
      await next.acquire()
      assert(Date.now() - start > 150)
      await next.release()
      await new Semaphore(client, 'deads', 1, { lockTimeout: 300, refreshInterval: 0 }).acquire()
      const permit = new Semaphore(client, 'deads', 1, patient)
      await permit.acquire()
      await permit.release()
    },
    async 'a loss is reported'() {
      let lost
      const mutex = new Mutex(client, 'lost', { lockTimeout: 300, refreshInterval: 50, onLockLost: (error) => (lost = error) })
      await mutex.acquire()
      await client.set('mutex:lost', 'somebody else')
      await sleep(300)
      assert(lost && !mutex.isAcquired)
    },
    async 'time-outs'() {
      const mutex = new Mutex(client, 'held', { lockTimeout: 5_000 })
      await mutex.acquire()
      const error = await rejects(new Mutex(client, 'held', { acquireTimeout: 100, retryInterval: 10 }).acquire())
      assert(error.constructor.name.includes('TimeoutError'), error.constructor.name)
      await mutex.release()
    },
  },
  {
    before: () => Promise.all([client, ...clients].map((each) => each.flushall())),
    after: async () => [client, ...clients].forEach((each) => each.disconnect()),
  },
)
