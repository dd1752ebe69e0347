// bullmq: jobs on lists, sorted sets, hashes and streams, moved by large Lua scripts with cmsgpack and cjson.
import { Queue, QueueEvents, Worker } from 'bullmq'
import Redis from 'ioredis'
import { assert, equal, host, port, protocol, run, sleep } from './suite.mjs'

const admin = new Redis({ host, port, protocol })
const connection = { host, port, protocol, maxRetriesPerRequest: null }
const open = []
const keep = (thing) => (open.push(thing), thing)

await run(
  {
    async 'every job is done once'() {
      const done = []
      const queue = keep(new Queue('orders', { connection }))
      const all = Array.from({ length: 40 }, (_, n) => ({ name: 'double', data: { n } }))
      await queue.addBulk(all)
      const work = async (job) => {
        done.push(job.data.n)
        return 2 * job.data.n
      }
      for (let i = 0; i < 3; i++) keep(new Worker('orders', work, { connection, concurrency: 4 }))
      while (done.length < 40 || (await queue.getJobCounts('completed')).completed < 40) await sleep(10)
      equal(done.sort((a, b) => a - b), all.map((job) => job.data.n))
    },
    async 'delays, priorities and results'() {
      const queue = keep(new Queue('timed', { connection }))
      const events = keep(new QueueEvents('timed', { connection }))
      await events.waitUntilReady()
      const order = []
      const late = await queue.add('late', {}, { delay: 300 })
      await queue.add('low', {}, { priority: 10 })
      await queue.add('high', {}, { priority: 1 })
      keep(new Worker('timed', async (job) => (order.push(job.name), job.name), { connection }))
      equal(await late.waitUntilFinished(events, 10_000), 'late')
      equal(order, ['high', 'low', 'late'])
    },
    async 'a failing job is tried again'() {
      const queue = keep(new Queue('failing', { connection }))
      let tries = 0
      const job = await queue.add('fail', {}, { attempts: 3, backoff: { type: 'fixed', delay: 20 } })
      const worker = keep(new Worker('failing', async () => { tries += 1; throw new Error('on purpose') }, { connection }))
      worker.on('error', () => {})
      while ((await job.getState()) !== 'failed') await sleep(10)
      equal(tries, 3)
    },
    async 'a stalled job of a dead worker is taken over'() {
      const queue = keep(new Queue('stalled', { connection }))
      const dead = keep(new Worker('stalled', () => new Promise(() => {}), { connection, lockDuration: 300, lockRenewTime: 100_000, skipStalledCheck: true }))
      await queue.add('job', {})
      while ((await queue.getActiveCount()) === 0) await sleep(10)
      let done = false
      keep(new Worker('stalled', async () => { done = true }, { connection, lockDuration: 1000, stalledInterval: 200 }))
      for (let i = 0; i < 500 && !done; i++) await sleep(10)
      assert(done, 'nobody took it over')
      dead.on('error', () => {})
      await dead.close(true)
    },
  },
  {
    before: () => admin.flushall(),
    after: async () => {
      await Promise.race([Promise.all(open.map((each) => each.close())), sleep(1500)])
      admin.disconnect()
    },
  },
)
