// The application's own tests, with ioredis and the server of portcullis-lock/testing. They are the same under node:test (orders.node.mjs) and
// under Vitest or Jest (orders.test.mjs): both files only bring their own hooks.
import { deepEqual, equal, match, ok, rejects } from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import Redis from 'ioredis'
import { Orders } from './orders.mjs'

export const options = { client: { protocol: Number(process.env.PROTOCOL ?? 2) } }

export const cases = {
  async 'an order is worked on by one'(server) {
    const [ann, bob] = ['ann', 'bob'].map((name) => new Orders(server.client(), name))
    ok(await ann.acquire(7))
    ok(!(await bob.acquire(7)) && !(await bob.release(7)))
    ok((await ann.release(7)) && (await bob.acquire(7)) && (await bob.release(7)))
  },
  async 'a worker that has died holds nobody up for longer than its lease'(server) {
    await server.clock.freeze()
    const [ann, bob] = ['ann', 'bob'].map((name) => new Orders(server.client(), name))
    ok(await ann.acquire(7))
    await server.clock.advance(9999)
    ok(!(await bob.acquire(7)))
    await server.clock.advance(1)
    ok(await bob.acquire(7))
    ok(!(await ann.release(7)) && (await bob.release(7)))
  },
  async 'a wait of half a minute is over at once'(server) {
    await server.clock.freeze()
    const next = new Orders(server.client(), 'ann').next(30)
    await server.untilBlocked(1)
    const start = performance.now()
    await server.clock.advance(30_000)
    equal(await next, null)
    ok(performance.now() - start < 50)
  },
  async 'whoever has lost the reply looks whose lock it is'(server) {
    await server.faults.add('lost', 'DROP-REPLY', { on: 'set', client: 'ann', times: 1 })
    const ann = new Orders(server.client({ connectionName: 'ann', commandTimeout: 100 }), 'ann')
    ok(await ann.acquire(7))
    equal(await server.faults.fired('lost'), 1)
    ok(await ann.release(7))
    ann.client.disconnect()
  },
  async 'a failover gives the same order to two'(server) {
    await server.journal(10)
    const [ann, bob] = ['ann', 'bob'].map((name) => new Orders(server.client(), name))
    await ann.submit(7)
    ok(await ann.acquire(7))
    equal(await server.restart({ lose: 1 }), 1)
    // What no lock without a fencing token can prevent.
    ok(await bob.acquire(7))
    deepEqual(await bob.client.lrange('orders', 0, -1), ['7'])
    ok(!(await ann.release(7)) && (await bob.release(7)))
    equal(await server.restart(), undefined)
    equal(await bob.client.dbsize(), 0)
  },
  async 'a slow reply is waited for'(server) {
    await server.faults.add('slow', 'DELAY-REPLY 60', { on: 'set', times: 1 })
    await server.faults.add('trickle', 'TRICKLE 1 5', { on: 'get', times: 1 })
    const client = server.client()
    await client.ping()
    const start = performance.now()
    equal(await client.set('k', 'value'), 'OK')
    equal(await client.get('k'), 'value')
    const took = performance.now() - start
    ok(took >= 60 + 40, `${took} ms`)
  },
  async 'errors come as they are'(server) {
    await server.faults.add('full', ['ERROR', 'OOM no room'], { on: 'rpush', times: 1 })
    await rejects(new Orders(server.client(), 'ann').submit(7), { message: 'OOM no room' })
  },
  async 'a leaked lock is named'(server) {
    server.leaksLocks()
    const client = server.client({ connectionName: 'leaky' })
    ok(await new Orders(client, 'ann').acquire(7))
    const token = await client.call('LOCK.ACQUIRE', 'door', 'bob', 5000)
    await rejects(server.assertNoLeakedLocks(), ({ message }) => {
      match(message, /lock:order:7 \(string\) held by 'ann'/)
      match(message, new RegExp(`door \\(lock\\) held by 'bob' for \\d+ ms, token ${token}, .*'leaky'`))
      return true
    })
    deepEqual((await server.leakedLocks('nothing:*')).length, 1)
  },
  async 'nothing is left of the tests before'(server) {
    equal(await server.client().dbsize(), 0)
    deepEqual(await server.leakedLocks(), [])
    const info = await server.clock.info()
    ok(!info.frozen && Math.abs(info['unix-ms'] - Date.now()) < 1000)
    const waits = server.client().blpop('nothing', 0)
    await server.untilBlocked(1)
    const start = performance.now()
    await server.reset()
    ok(performance.now() - start < 100)
    equal(await waits, null)
  },
  async 'whatever went wrong in the tests before is over'(server) {
    await server.faults.add('all', ['ERROR', 'LOADING not yet'])
    await server.untilBlocked(0)
    await server.restart()
    await server.clock.freeze()
    await server.reset()
    const client = server.client({ retryStrategy: null, maxRetriesPerRequest: 0 })
    await client.ping()
    await server.clock.freeze()
    await server.faults.add('slow', 'DELAY 5000', { on: 'set' })
    const lost = rejects(client.set('of the test before', 1))
    await server.untilBlocked(1)
    await server.client().client('PAUSE', 60_000)
    await server.reset()
    await lost
    await server.clock.advance(60_000)
    equal(await server.client().dbsize(), 0)
  },
  async 'the server does not outlive a run that is killed'() {
    const program = "const { PortcullisServer } = await import('portcullis-lock/testing'); console.log((await PortcullisServer.create()).port); setTimeout(() => {}, 60_000)"
    const run = spawn(process.execPath, ['--input-type=module', '-e', program], { cwd: fileURLToPath(new URL('.', import.meta.url)), stdio: ['ignore', 'pipe', 'inherit'] })
    const port = Number(await new Promise((resolve) => run.stdout.once('data', resolve)))
    const client = new Redis({ port, host: '127.0.0.1', retryStrategy: null })
    client.on('error', () => {})
    equal(await client.ping(), 'PONG')
    const closed = new Promise((resolve) => client.once('close', resolve))
    run.kill('SIGKILL')
    await closed
    const again = new Redis({ port, host: '127.0.0.1', retryStrategy: null, lazyConnect: true })
    again.on('error', () => {})
    await rejects(again.connect())
  },
}
