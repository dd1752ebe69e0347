// A Portcullis server for tests in JavaScript: Vitest, Jest, node:test. Copy this file beside your tests; it needs ioredis and nothing else.
//
//   import { useServer } from './portcullis-server.mjs'
//   const server = useServer({ beforeAll, beforeEach, afterEach, afterAll })   // of Vitest or Jest; of node:test: { before, beforeEach, … }
//
//   test('a lease that is over is had by another', async () => {
//     const client = server.client()
//     await server.clock.freeze()
//     await client.set('lock:a', 'alice', 'PX', 10_000, 'NX')
//     await server.clock.advance(10_000)
//     expect(await client.set('lock:a', 'bob', 'PX', 10_000, 'NX')).toBe('OK')
//     await client.del('lock:a')
//   })
//
// One process serves one test file. It is emptied before each test, and after each test no lock may be held any more (unless the test says
// `server.leaksLocks()`); clients made by `server.client()` are closed then. The program is `portcullis` on the PATH, or what the environment variable PORTCULLIS
// names. It ends with the test runner, also when that is killed: it watches its standard input, which the system closes then.
import { spawn } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import Redis from 'ioredis'

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const pairs = (list) => Object.fromEntries(Array.from({ length: list.length / 2 }, (_, i) => [list[2 * i], list[2 * i + 1]]))

// Starts a server; `flags` are further ones of `portcullis serve`, `client` the options of all its clients.
export async function start({ flags = [], program = process.env.PORTCULLIS ?? 'portcullis', client = {}, patience = 10_000 } = {}) {
  const directory = mkdtempSync(join(tmpdir(), 'portcullis-'))
  const ready = join(directory, 'ready')
  const fixed = ['serve', '--test-mode', '--end-with-stdin', '--port', '0', '--bind', '127.0.0.1', '--ready-file', ready]
  const child = spawn(program, [...fixed, ...flags], { stdio: ['pipe', 'pipe', 'pipe'] })
  let said = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => (said = (said + text).slice(-10_000)))
  let gone
  const ended = new Promise((resolve) => {
    child.on('error', (error) => resolve((gone = error.message)))
    child.on('exit', (code, signal) => resolve((gone = `ended with ${code ?? signal}`)))
  })
  child.stdin.on('error', () => {})
  // Does not keep the process alive.
  for (const handle of [child, child.stdin, child.stdout, child.stderr]) handle.unref()
  const end = performance.now() + patience
  let address
  while (!(address = read(ready))) {
    if (gone || performance.now() > end) {
      child.kill('SIGKILL')
      rmSync(directory, { recursive: true, force: true })
      throw new Error(`${program} does not start: ${gone ?? 'it is not ready in time'}\n${said}`)
    }
    await sleep(1)
  }
  rmSync(directory, { recursive: true, force: true })
  return new Server(child, ended, address, client)
}

function read(path) {
  try {
    return readFileSync(path, 'utf8').trim()
  } catch {
    return ''
  }
}

export class Server {
  #child
  #ended
  #control
  #clients = new Set()
  #options

  constructor(child, ended, address, options) {
    const [, host, port] = address.match(/^(.*):(\d+)$/)
    Object.assign(this, { host, port: Number(port), url: `redis://${address}/0`, pid: child.pid })
    this.#child = child
    this.#ended = ended
    this.#options = { host, port: this.port, ...options }
    // This connection sends nothing at connect that a fault could hit, so CLOCK and FAULT always work.
    const silent = { connectionName: undefined, enableReadyCheck: false, disableClientInfo: true }
    this.#control = new Redis({ ...this.#options, protocol: 2, db: 0, ...silent, retryStrategy: () => 1 })
    this.#control.on('error', () => {})
    const clock = (...words) => this.order('CLOCK', ...words)
    this.clock = {
      freeze: () => clock('FREEZE'),
      resume: () => clock('RESUME'),
      // When the promise resolves, everything due within these milliseconds has happened, and replies to waiters are sent.
      advance: (ms) => clock('ADVANCE', ms),
      // Forward to a unix time in milliseconds or a Date; back to it, the wall clock alone is stepped.
      set: (time) => clock('SET', Number(time)),
      // Steps the wall clock alone, forward or back. Leases and TTLs do not change.
      skew: (ms) => clock('SKEW', ms),
      info: async () => pairs(await clock('INFO')),
    }
    const fault = (...words) => this.order('FAULT', ...words)
    this.faults = {
      // `what` in the words of FAULT ADD: 'DROP-REPLY', 'DELAY 500', 'RESTART-AFTER LOSE 1', or ['ERROR', 'OOM no room'];
      // options: on, client, probability, times, after.
      add: (name, what, options = {}) => {
        const words = Array.isArray(what) ? what : what.split(' ')
        return fault('ADD', name, ...words, ...Object.entries(options).flatMap(([option, value]) => [option.toUpperCase(), value]))
      },
      remove: (name) => fault('DEL', name),
      reset: () => fault('RESET'),
      // Restarts the random sequence from this seed.
      seed: (seed) => fault('SEED', seed),
      fired: async (name) => (await fault('LIST')).map(pairs).find((rule) => rule.name === name)?.fired ?? 0,
    }
  }

  // A client of ioredis, closed at the end of the test.
  client(options = {}) {
    const client = new Redis({ ...this.#options, ...options })
    client.on('error', () => {})
    this.#clients.add(client)
    return client
  }

  // A command of the helper's own connection.
  order(...words) {
    return this.#control.call(...words)
  }

  // Resets the server: deletes data, scripts, functions and faults, and lets the clock run at the real time. Configuration, users and connections
  // stay. A client that is still blocked is unblocked, and a connection whose request is delayed by a fault is closed.
  async reset() {
    this.leaksAllowed = false
    await this.faults.reset()
    if ((await this.clock.info())['blocked-clients'] > 0) {
      const waiting = (await this.order('CLIENT', 'LIST')).split('\n').filter((line) => / flags=\S*b/.test(line))
      for (const id of waiting.map((line) => line.match(/^id=(\d+)/)[1])) {
        if (!(await this.order('CLIENT', 'UNBLOCK', id))) await this.order('CLIENT', 'KILL', 'ID', id)
      }
    }
    const orders = ['FAULT JOURNAL 0', 'CLOCK RESUME', `CLOCK SET ${Date.now()}`, 'FLUSHALL', 'SCRIPT FLUSH', 'FUNCTION FLUSH']
    const replies = await this.#control.pipeline(orders.map((order) => ['call', ...order.split(' ')])).exec()
    for (const [error] of replies) if (error) throw error
  }

  // Restarts the server without its data. With `lose`, simulates a failover that loses that many last writes, if `journal` kept them; resolves with
  // their number. Connections are closed.
  async restart({ lose } = {}) {
    const closed = new Promise((resolve) => this.#control.once('close', resolve))
    const lost = await this.order('FAULT', 'RESTART', ...(lose === undefined ? [] : ['LOSE', lose]))
    await closed
    return lose === undefined ? undefined : lost
  }

  // Keeps this many last writes from now on, so that `restart` can lose them.
  journal(writes) {
    return this.order('FAULT', 'JOURNAL', writes)
  }

  // Waits until this many clients are blocked: in BLPOP, on a lock, by a pause or by a delay.
  async untilBlocked(count = 1, patience = 10_000) {
    const end = performance.now() + patience
    for (;;) {
      const blocked = (await this.clock.info())['blocked-clients']
      if (blocked === count) return
      if (performance.now() > end) throw new Error(`${blocked} clients wait, and not ${count}`)
      await sleep(1)
    }
  }

  // The locks that are still held, each as a line of text: native ones, and plain keys that match one of the patterns or, without any, whose
  // names say that they are locks (lock:a, job-7.mutex, orderLock).
  async leakedLocks(...patterns) {
    return (await this.order('FAULT', 'LEAKS', ...patterns)).map((leak) => pairs(leak).text)
  }

  async assertNoLeakedLocks(...patterns) {
    const leaks = await this.leakedLocks(...patterns)
    if (leaks.length > 0) throw new Error(`locks are still held:\n  ${leaks.join('\n  ')}`)
  }

  // The test that runs may end with locks held.
  leaksLocks() {
    this.leaksAllowed = true
  }

  // Ends a test: closes its clients; no lock may be held.
  async endTest(...patterns) {
    for (const client of this.#clients) client.disconnect()
    this.#clients.clear()
    if (!this.leaksAllowed) await this.assertNoLeakedLocks(...patterns)
  }

  // Ends the process, for certain.
  async stop() {
    for (const client of this.#clients) client.disconnect()
    this.#control.disconnect()
    this.#child.ref()
    this.#child.kill('SIGKILL')
    await this.#ended
  }
}

// Starts a server before the tests of a file, empties it before each, looks for leaked locks after each, and ends it after all. Takes the hooks of
// the test runner. What it gives is the server from the first hook on.
export function useServer({ beforeAll, before = beforeAll, beforeEach, afterEach, afterAll, after = afterAll }, options = {}) {
  let server
  before(async () => {
    server = await start(options)
  })
  beforeEach(() => server.reset())
  afterEach(() => server.endTest(...(options.lockKeys ?? [])))
  after(() => server?.stop())
  const of = (name) => (typeof server?.[name] === 'function' ? server[name].bind(server) : server?.[name])
  return new Proxy({}, { get: (_, name) => of(name) })
}
