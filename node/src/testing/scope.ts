/** What a test uses of a server, or of one database of it: clients, locks, and the check for locks that are still held. */
import { type ConnectOptions, type Locks, connect, internals } from '../locks.js'
import { networkNow, pause } from '../time.js'
import { type Control, pairs } from './control.js'
import load from './load.cjs'

/** @ts-ignore ioredis is optional: without it the type is any. */
export type IoredisClient = import('ioredis').Redis
/** @ts-ignore ioredis is optional: without it the type is any. */
export type IoredisOptions = import('ioredis').RedisOptions
/** @ts-ignore redis is optional: without it the type is any. */
export type NodeRedisClient = ReturnType<typeof import('redis')['createClient']>
/** @ts-ignore redis is optional: without it the type is any. */
export type NodeRedisOptions = NonNullable<Parameters<typeof import('redis')['createClient']>[0]>

interface Closable {
  disconnect?: () => unknown
  destroy?: () => unknown
}

/** A lock that is still held, as FAULT LEAKS shows it. */
export interface Leak {
  db: number
  token: number
  text: string
}

/** Where the clients of a test connect to. */
export interface Address {
  host: string
  port: number
  db: number
  username?: string | undefined
  password?: string | undefined
}

/** The clients of a test, and what they leave behind. `PortcullisServer` and `PortcullisDatabase` extend it. */
export abstract class TestScope {
  readonly host: string
  readonly port: number
  /** The database's number. */
  readonly db: number
  /** URL of the database. */
  readonly url: string
  /** @internal */ protected readonly control: Control
  readonly #address: Address
  readonly #options: IoredisOptions
  #clients = new Set<Closable>()
  #locks = new Set<Locks>()
  #leaksAllowed = false

  /** @internal */
  constructor(address: Address, control: Control, options: IoredisOptions = {}) {
    const { host, port, db, username = '', password } = address
    const login = password === undefined ? '' : `${encodeURIComponent(username)}:${encodeURIComponent(password)}@`
    this.host = host
    this.port = port
    this.db = db
    this.url = `redis://${login}${host.includes(':') ? `[${host}]` : host}:${port}/${db}`
    this.control = control
    this.#address = address
    this.#options = options
  }

  /** A client of ioredis, which is closed at the end of the test. Needs the package ioredis. */
  client(options: IoredisOptions = {}): IoredisClient {
    const { Redis } = load('ioredis')
    const client = new Redis({ ...this.#address, ...this.#options, ...options })
    client.on('error', () => {})
    return this.track(client)
  }

  /** A connected client of node-redis, which is closed at the end of the test. Needs the package redis. */
  async nodeRedis(options: NodeRedisOptions = {}): Promise<NodeRedisClient> {
    const { createClient } = load('redis')
    const { host, port, db, username, password } = this.#address
    const client = createClient({ username, password, database: db, ...options, socket: { host, port, ...options.socket } })
    client.on('error', () => {})
    await client.connect()
    return this.track(client)
  }

  /** Closes a client of the test's own at the end of the test. */
  track<T extends Closable>(client: T): T {
    this.#clients.add(client)
    return client
  }

  /** `connect` to this database, closed at the end of the test. */
  locks(options: ConnectOptions = {}): Locks {
    const locks = connect(this.url, options)
    this.#locks.add(locks)
    return locks
  }

  /** Sends a command over the connection of the hooks, which no fault of CLOCK or FAULT can hit. */
  order(...words: Array<string | number>): Promise<unknown> {
    return this.control.call(...words)
  }

  /** Deletes what earlier tests left. */
  async reset(): Promise<void> {
    this.#leaksAllowed = false
  }

  /** Number of clients that wait. */
  protected abstract blocked(): Promise<number>

  /** Waits until this many clients are blocked: in BLPOP, on a lock, by a pause or by a delay. Throws after `patience` milliseconds. */
  async untilBlocked(count = 1, patience = 10_000): Promise<void> {
    const end = networkNow() + patience
    for (;;) {
      const blocked = await this.blocked()
      if (blocked === count) return
      if (networkNow() > end) throw new Error(`${blocked} clients wait, and not ${count}`)
      await pause(1)
    }
  }

  /** The locks of the whole server that are still held. */
  protected async leaks(patterns: readonly string[] = []): Promise<Leak[]> {
    const leaks = ((await this.order('FAULT', 'LEAKS', ...patterns)) as unknown[]).map(pairs)
    return leaks.map(({ db, token, text }) => ({ db: Number(db), token: Number(token), text: String(text) }))
  }

  /**
   * The locks that are still held, each as a line of text: native ones, and plain keys that match one of the patterns or, without any,
   * whose names say that they are locks (lock:a, job-7.mutex, orderLock).
   */
  async leakedLocks(...patterns: string[]): Promise<string[]> {
    return (await this.leaks(patterns)).map((leak) => leak.text)
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
    try {
      // What was given up is cleaned up first: it is no leak.
      for (const locks of this.#locks) await internals(locks).settled()
      if (!this.#leaksAllowed) await this.assertNoLeakedLocks(...patterns)
    } finally {
      await this.closeClients()
    }
  }

  /** @internal Closes the clients and locks of the test. If the server is gone, nothing is released. */
  protected async closeClients(isGone = false): Promise<void> {
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

  /** @internal The grants of `locks()`. */
  protected grants() {
    return [...this.#locks].flatMap((locks) => internals(locks).grants())
  }
}
