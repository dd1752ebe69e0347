/** A server for tests: its process, its clock, its faults, and the clients of a test. */
import { type ConnectOptions, type Locks, connect, internals } from '../locks.js'
import { networkNow, pause } from '../time.js'
import { Clock } from './clock.js'
import { Control, pairs } from './control.js'
import load from './load.cjs'
import { type StartOptions, type Started, startProcess } from './process.js'

/** @ts-ignore ioredis is optional: without it the type is any. */
export type IoredisClient = import('ioredis').Redis
/** @ts-ignore ioredis is optional: without it the type is any. */
export type IoredisOptions = import('ioredis').RedisOptions
/** @ts-ignore redis is optional: without it the type is any. */
export type NodeRedisClient = ReturnType<typeof import('redis')['createClient']>
/** @ts-ignore redis is optional: without it the type is any. */
export type NodeRedisOptions = NonNullable<Parameters<typeof import('redis')['createClient']>[0]>

/** Options of a server. */
export interface ServerOptions extends StartOptions {
  /** Options of all clients that `client()` makes. */
  client?: IoredisOptions
  /** As redis-memory-server has them: port, ip, and further flags. */
  instance?: { port?: number; ip?: string; args?: readonly string[] }
}

/** Which requests a fault hits, and how often. */
export interface FaultOptions {
  /** Commands, such as `set` or `lock.*`. */
  on?: string
  /** Clients by name or address, such as `worker-*`. */
  client?: string
  /** From 0 to 1. */
  probability?: number
  times?: number
  /** Number of requests that pass before the first fault. */
  after?: number
}

interface Closable {
  disconnect?: () => unknown
  destroy?: () => unknown
}

/** A server in test mode. `PortcullisServer.create()` starts one, and `stop()` ends it. */
export class PortcullisServer {
  readonly host: string
  readonly port: number
  /** URL of database 0. */
  readonly url: string
  readonly pid: number
  readonly clock: Clock
  readonly #started: Started
  readonly #control: Control
  readonly #options: ServerOptions
  #clients = new Set<Closable>()
  #locks = new Set<Locks>()
  #leaksAllowed = false

  private constructor(started: Started, options: ServerOptions) {
    const { host, port, child } = started
    this.host = host
    this.port = port
    this.url = `redis://${host.includes(':') ? `[${host}]` : host}:${port}/0`
    this.pid = child.pid as number
    this.#started = started
    this.#options = options
    this.#control = new Control(host, port)
    this.clock = new Clock(this.#control, {
      moved: () => this.#noticeLosses(),
      shortestLease: () => Math.min(...this.#grants().map((grant) => grant.lease)),
    })
  }

  /**
   * Starts a server.
   *
   * @throws Error if there is no program, which says how to get it; or if the program does not start.
   */
  static async create(options: ServerOptions = {}): Promise<PortcullisServer> {
    const { instance = {} } = options
    const flags = [...(options.flags ?? []), ...(instance.args ?? [])]
    const started = await startProcess({ ...options, port: options.port ?? instance.port, ip: options.ip ?? instance.ip, flags })
    return new PortcullisServer(started, options)
  }

  /** The host, as redis-memory-server gives it. */
  async getHost(): Promise<string> {
    return this.host
  }

  /** The same as the host, as redis-memory-server gives it. */
  async getIp(): Promise<string> {
    return this.host
  }

  /** The port, as redis-memory-server gives it. */
  async getPort(): Promise<number> {
    return this.port
  }

  /** A client of ioredis, which is closed at the end of the test. Needs the package ioredis. */
  client(options: IoredisOptions = {}): IoredisClient {
    const { Redis } = load('ioredis')
    const client = new Redis({ host: this.host, port: this.port, ...this.#options.client, ...options })
    client.on('error', () => {})
    return this.track(client)
  }

  /** A connected client of node-redis, which is closed at the end of the test. Needs the package redis. */
  async nodeRedis(options: NodeRedisOptions = {}): Promise<NodeRedisClient> {
    const { createClient } = load('redis')
    const client = createClient({ ...options, socket: { host: this.host, port: this.port, ...options.socket } })
    client.on('error', () => {})
    await client.connect()
    return this.track(client)
  }

  /** Closes a client of the test's own at the end of the test. */
  track<T extends Closable>(client: T): T {
    this.#clients.add(client)
    return client
  }

  /** `connect` to this server, closed at the end of the test. Its grants know at once when a move of the clock ends them. */
  locks(options: ConnectOptions = {}): Locks {
    const locks = connect(this.url, options)
    this.#locks.add(locks)
    return locks
  }

  /** Sends a command over the connection of the hooks, which no fault of CLOCK or FAULT can hit. */
  order(...words: Array<string | number>): Promise<unknown> {
    return this.#control.call(...words)
  }

  readonly faults = {
    /** Adds a rule. `what` in the words of FAULT ADD: 'DROP-REPLY', 'DELAY 500', or ['ERROR', 'OOM no room']. */
    add: async (name: string, what: string | readonly string[], options: FaultOptions = {}): Promise<void> => {
      const words = typeof what === 'string' ? what.split(' ') : what
      await this.order('FAULT', 'ADD', name, ...words, ...Object.entries(options).flatMap(([option, value]) => [option.toUpperCase(), value]))
    },
    /** Removes a rule. */
    remove: async (name: string): Promise<void> => void (await this.order('FAULT', 'DEL', name)),
    /** Removes all rules. */
    reset: async (): Promise<void> => void (await this.order('FAULT', 'RESET')),
    /** Restarts the random sequence from this seed. */
    seed: async (seed: number): Promise<void> => void (await this.order('FAULT', 'SEED', seed)),
    /** How often a rule has fired. */
    fired: async (name: string): Promise<number> => {
      const rules = (await this.order('FAULT', 'LIST')) as unknown[]
      return Number(rules.map(pairs).find((rule) => rule['name'] === name)?.['fired'] ?? 0)
    },
  }

  /**
   * Resets the server: deletes data, scripts, functions and faults, and lets the clock run at the real time. Configuration, users and
   * connections stay. A client that is still blocked is unblocked, and a connection whose request is delayed by a fault is closed.
   */
  async reset(): Promise<void> {
    this.#leaksAllowed = false
    this.clock.unfollow()
    await this.faults.reset()
    if ((await this.clock.info())['blocked-clients'] > 0) {
      const waiting = String(await this.order('CLIENT', 'LIST')).split('\n').filter((line) => / flags=\S*b/.test(line))
      for (const line of waiting) {
        const id = (/^id=(\d+)/.exec(line) as RegExpExecArray)[1] as string
        if (!(await this.order('CLIENT', 'UNBLOCK', id))) await this.order('CLIENT', 'KILL', 'ID', id)
      }
    }
    const orders = ['FAULT JOURNAL 0', 'CLOCK RESUME', `CLOCK SET ${realDate()}`, 'FLUSHALL', 'SCRIPT FLUSH', 'FUNCTION FLUSH']
    await Promise.all(orders.map((order) => this.order(...order.split(' '))))
  }

  /**
   * Restarts the server without its data. With `lose`, simulates a failover that loses that many last writes, if `journal` kept them;
   * resolves with their number. Connections are closed.
   */
  async restart({ lose }: { lose?: number } = {}): Promise<number | undefined> {
    // A first request makes sure that there is a connection to be closed.
    await this.clock.info()
    const closed = this.#control.closed()
    const lost = await this.order('FAULT', 'RESTART', ...(lose === undefined ? [] : ['LOSE', lose]))
    await closed
    return lose === undefined ? undefined : Number(lost)
  }

  /** Keeps this many last writes from now on, so that `restart` can lose them. */
  async journal(writes: number): Promise<void> {
    await this.order('FAULT', 'JOURNAL', writes)
  }

  /** Waits until this many clients are blocked: in BLPOP, on a lock, by a pause or by a delay. Throws after `patience` milliseconds. */
  async untilBlocked(count = 1, patience = 10_000): Promise<void> {
    const end = networkNow() + patience
    for (;;) {
      const blocked = (await this.clock.info())['blocked-clients']
      if (blocked === count) return
      if (networkNow() > end) throw new Error(`${blocked} clients wait, and not ${count}`)
      await pause(1)
    }
  }

  /**
   * The locks that are still held, each as a line of text: native ones, and plain keys that match one of the patterns or, without any,
   * whose names say that they are locks (lock:a, job-7.mutex, orderLock).
   */
  async leakedLocks(...patterns: string[]): Promise<string[]> {
    return ((await this.order('FAULT', 'LEAKS', ...patterns)) as unknown[]).map((leak) => String(pairs(leak)['text']))
  }

  /** Throws an Error that names the locks that are still held, if there are any. */
  async assertNoLeakedLocks(...patterns: string[]): Promise<void> {
    const leaks = await this.leakedLocks(...patterns)
    if (leaks.length > 0) throw new Error(`locks are still held:\n  ${leaks.join('\n  ')}`)
  }

  /** The test that runs may end with locks held. */
  leaksLocks(): void {
    this.#leaksAllowed = true
  }

  /** Ends a test: no lock may be held; then its clients are closed. */
  async endTest(...patterns: string[]): Promise<void> {
    this.clock.unfollow()
    try {
      // What was given up is cleaned up first: it is no leak.
      for (const locks of this.#locks) await internals(locks).settled()
      if (!this.#leaksAllowed) await this.assertNoLeakedLocks(...patterns)
    } finally {
      await this.#closeClients()
    }
  }

  /** Ends the process, for certain. Resolves to true, as redis-memory-server does. */
  async stop(): Promise<boolean> {
    this.clock.unfollow()
    this.#started.child.ref()
    this.#started.child.kill('SIGKILL')
    await this.#started.ended
    await this.#closeClients(true)
    this.#control.close()
    return true
  }

  async #closeClients(isGone = false): Promise<void> {
    for (const client of this.#clients) {
      try {
        if (client.destroy) client.destroy()
        else client.disconnect?.()
      } catch {
        // A client of node-redis that the test has closed throws.
      }
    }
    this.#clients.clear()
    const all = [...this.#locks]
    this.#locks.clear()
    for (const locks of all) {
      if (isGone) internals(locks).pool.close()
      else await locks.close()
    }
  }

  #grants() {
    return [...this.#locks].flatMap((locks) => internals(locks).grants())
  }

  /** Lets the grants of `locks()` that the server has ended know it. FAULT LEAKS, because no fault can hit it. */
  async #noticeLosses(): Promise<void> {
    const all = this.#grants()
    if (all.length === 0) return
    const held = new Set(((await this.order('FAULT', 'LEAKS')) as unknown[]).map((leak) => Number(pairs(leak)['token'])))
    for (const grant of all) {
      if (!grant.tokens.every((token) => held.has(token))) grant.lose(grant.leaseEnded('the server ended it when the clock moved'))
    }
  }
}

/** The time of the real Date: hooks run after tests with fake ones. */
const RealDate = Date
function realDate(): number {
  return RealDate.now()
}
