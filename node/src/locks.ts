/** `connect` and `Locks`: what applications use. */
import { acquire } from './acquire.js'
import { Core } from './core.js'
import { Dialer, type DriverName, sourceOf } from './driver/driver.js'
import { NotAcquiredError } from './errors.js'
import type { Grant } from './grant.js'
import { Guard, Latch, Semaphore, type ThrottleOptions, type Throttled, throttle } from './parts.js'
import { Pool, type PoolLimits } from './pool.js'
import { type LockInfo, holderText, infoOf } from './replies.js'
import { type AllOptions, type LockOptions, Request, whole } from './request.js'

/** Options of `connect`. Times are milliseconds. */
export interface ConnectOptions extends Partial<PoolLimits> {
  /** The client library for a URL: by default ioredis if it is installed, and otherwise node-redis. */
  driver?: DriverName
  /** Name of the connections, which LOCK.INFO and errors show. */
  name?: string
  /** Options of `tls.connect` for a `rediss://` URL, such as `ca`. */
  tls?: object
}

const LIMITS: PoolLimits = { connectTimeout: 2000, timeout: 5000, patience: 10_000, maxConnections: 1024 }

/**
 * Makes locks of a server. Nothing is sent before the first request.
 *
 * @param to A URL (`redis://host:port/db`, `rediss://…`, `redis://a:1,b:2,c:3` for the nodes of a replicated server,
 *   `redis+sentinel://a,b/service`, `unix:///path`), or a client of ioredis or node-redis. A client lends its options only: the
 *   package opens connections of its own, and a wait never holds up the application's.
 * @throws TypeError if `to` is neither.
 */
export function connect(to: string | object = 'redis://127.0.0.1:6379', options: ConnectOptions = {}): Locks {
  const limits = { ...LIMITS }
  for (const key of Object.keys(LIMITS) as Array<keyof PoolLimits>) {
    if (options[key] !== undefined) limits[key] = whole(key, options[key], 1)
  }
  return new Locks(new Core(new Pool(new Dialer(sourceOf(to, options)), limits)))
}

/** The locks of a server. Use one for the whole process. All times are milliseconds. */
export class Locks implements AsyncDisposable {
  readonly #core: Core

  /** @internal Use `connect`. */
  constructor(core: Core) {
    this.#core = core
    INTERNALS.set(this, { pool: core.pool, grants: () => core.renewals.grants as Grant[], settled: () => core.settled() })
  }

  /**
   * Acquires a lock.
   *
   * @throws NotAcquiredError, which names the holders, if it is not granted within `wait` (at once without one); DeadlockError;
   *   UnreachableError; the reason of `signal`.
   */
  async lock(name: string, options: LockOptions = {}): Promise<Grant> {
    const request = new Request('lock', [name], options)
    return (await acquire(this.#core, request)) ?? this.#refused(request)
  }

  /**
   * Acquires a lock, or resolves to null if it is not granted within `wait` (at once without one).
   *
   * @throws as `lock`, except NotAcquiredError.
   */
  async tryLock(name: string, options: LockOptions = {}): Promise<Grant | null> {
    return acquire(this.#core, new Request('lock', [name], options))
  }

  /**
   * Runs `work` with the lock held, and releases it. The signal is aborted if the lock is lost meanwhile.
   *
   * @throws as `lock`; what `work` throws; NotHeldError if the lock was lost before `work` was done.
   */
  async withLock<T>(name: string, options: LockOptions, work: (grant: Grant, signal: AbortSignal) => T | Promise<T>): Promise<T> {
    return during(await this.lock(name, options), work)
  }

  /**
   * Acquires several locks together or none. Their order does not matter: two of them never block each other for good.
   *
   * @throws as `lock`.
   */
  async all(names: readonly string[], options: AllOptions = {}): Promise<Grant> {
    const request = new Request('all', [...names], options)
    return (await acquire(this.#core, request)) ?? this.#refused(request)
  }

  /** As `all`, but resolves to null if they are not granted within `wait`. */
  async tryAll(names: readonly string[], options: AllOptions = {}): Promise<Grant | null> {
    return acquire(this.#core, new Request('all', [...names], options))
  }

  /** A semaphore with this many permits. All its users give the same limit. */
  semaphore(name: string, limit: number): Semaphore {
    return new Semaphore(
      name,
      whole('limit', limit, 1),
      (request) => acquire(this.#core, request),
      async (request) => (await acquire(this.#core, request)) ?? this.#refused(request),
    )
  }

  /** A latch, which opens when it is counted down to 0. */
  latch(name: string): Latch {
    return new Latch(this.#core, name)
  }

  /** A resource that remembers the largest fencing token, and refuses smaller ones. */
  guard(resource: string): Guard {
    return new Guard(this.#core, resource)
  }

  /** Counts a request against a rate limit, by GCRA: `count` requests a `period`, and `maxBurst` more at once. */
  async throttle(key: string, options: ThrottleOptions): Promise<Throttled> {
    return throttle(this.#core, key, options)
  }

  /** Who holds a lock and who waits for it; null if there is no such lock. Also of semaphores, latches, guards and plain keys. */
  async info(name: string): Promise<LockInfo | null> {
    return infoOf(await this.#core.pool.ask(['LOCK.INFO', name]))
  }

  /**
   * Ends one grant of somebody, for an administrator; the next waiter is served at once.
   *
   * @param token Of the grant, as `info` shows it.
   * @param reason At most 256 bytes; the server's LOCK.WHY shows it.
   * @throws NotHeldError if there is no such grant.
   */
  async break(name: string, token: number, reason?: string): Promise<void> {
    await this.#core.pool.ask(['LOCK.BREAK', name, 'TOKEN', String(token), ...(reason === undefined ? [] : ['REASON', reason])])
  }

  /** Asks the server which grants of this process are still held, and lets those that are not be lost. Resolves with the lost ones. */
  async checkAll(): Promise<Grant[]> {
    const grants = this.#core.renewals.grants as Grant[]
    if (grants.length === 0) return []
    const commands = grants.map((grant) => grant.checkCommands())
    const replies = await this.#core.pool.request(commands.flat())
    let at = 0
    return grants.filter((grant, number) => {
      const count = (commands[number] as unknown[]).length
      return !grant.checked(replies.slice(at, (at += count)))
    })
  }

  /** Ends waits, releases what is still held, and closes all connections. */
  async close(): Promise<void> {
    this.#core.abortAll()
    await this.#core.pool.quiet()
    await this.#core.settled()
    const grants = this.#core.renewals.grants as Grant[]
    // Whoever waits for a grant's loss or release sees the failure there.
    await Promise.allSettled(grants.map((grant) => grant.release()))
    await this.#core.settled()
    this.#core.renewals.stop()
    this.#core.losses.close()
    this.#core.pool.close()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  /** Throws the error of a request that is not granted in time, with who holds the lock. */
  async #refused(request: Request): Promise<never> {
    const infos = await Promise.all(request.names.map((name) => this.info(name).catch(() => null)))
    const holders = infos.flatMap((info) => info?.holders ?? [])
    const who = holders.length > 0 ? `it is held by ${holders.map(holderText).join(', and ')}` : 'nobody holds it now'
    const after = request.wait === 0 ? 'at once; give a `wait` to queue for it' : `within ${request.wait} ms`
    throw new NotAcquiredError(`'${request.title}' was not granted ${after}: ${who}`, request.names, holders)
  }
}

/** What the test hooks need of a `Locks`. */
export interface Internals {
  readonly pool: Pool
  grants(): Grant[]
  /** Resolves when no work goes on without a caller. */
  settled(): Promise<void>
}

const INTERNALS = new WeakMap<Locks, Internals>()

/** @internal */
export function internals(locks: Locks): Internals {
  return INTERNALS.get(locks) as Internals
}

/** Runs work under a grant, and releases it. */
export async function during<T>(grant: Grant, work: (grant: Grant, signal: AbortSignal) => T | Promise<T>): Promise<T> {
  let result: T
  try {
    result = await work(grant, grant.signal)
  } catch (error) {
    // The failure of the work counts; that of the release often follows from it.
    await grant.release().catch(() => {})
    throw error
  }
  await grant.release()
  return result
}
