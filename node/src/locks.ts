/** `connect` and `Locks`: what applications use. */
import { acquire } from './acquire.js'
import { Core } from './core.js'
import { Dialer, type DriverName, sourceOf } from './driver/driver.js'
import { NotAcquiredError } from './errors.js'
import type { Grant } from './grant.js'
import { Guard, Latch, Semaphore, type ThrottleOptions, type Throttled, throttle } from './parts.js'
import { Pool, type PoolLimits } from './pool.js'
import { type LockInfo, holderText, infoOf, plainKeyText } from './replies.js'
import { keepProcessDuring, networkTimer } from './time.js'
import { connectionName, known, lockName, text, whole } from './options.js'
import { type AllOptions, type LockOptions, Request } from './request.js'

/** Options of `connect`. Times are milliseconds. */
export interface ConnectOptions extends Partial<PoolLimits> {
  /** The client library for a URL: by default ioredis if it is installed, and otherwise node-redis. */
  driver?: DriverName
  /** Name of the connections, which LOCK.INFO and errors show. */
  name?: string
  /** Options of `tls.connect` for a `rediss://` URL, such as `ca`. */
  tls?: object
}

/** How long a message waits for what the server knows of a lock, in milliseconds. */
const INFO_MS = 1000

/** What `withLock` runs. The signal is aborted if the lock is lost. */
export type Work<T> = (grant: Grant, signal: AbortSignal) => T | Promise<T>

const LIMITS: PoolLimits = { connectTimeout: 2000, timeout: 5000, patience: 10_000, maxConnections: 1024 }

const LIMIT_NAMES = Object.keys(LIMITS) as Array<keyof PoolLimits>

/** Makes locks of the server at 127.0.0.1:6379. Nothing is sent before the first request. */
export function connect(): Locks
/**
 * Makes locks of a server. Nothing is sent before the first request.
 *
 * @param to A URL (`redis://host:port/db`, `rediss://…`, `redis://a:1,b:2,c:3` for the nodes of a replicated server,
 *   `redis+sentinel://a,b/service`, `unix:///path`), or a client of ioredis or node-redis. A client lends its options only: the
 *   package opens connections of its own, and a wait never holds up the application's.
 * @throws TypeError if `to` is neither, or an option is unknown or of another type; RangeError if a number is below 1.
 */
export function connect(to: string | object, options?: ConnectOptions): Locks
export function connect(...given: [to?: unknown, options?: ConnectOptions]): Locks {
  // Without an argument it is this machine's server. A variable that is unset must not lead there.
  const [to = given.length === 0 ? 'redis://127.0.0.1:6379' : undefined, options = {}] = given
  const { driver, name, tls } = known('connect()', options, ['driver', 'name', 'tls', ...LIMIT_NAMES])
  const limits = { ...LIMITS }
  for (const key of LIMIT_NAMES) if (options[key] !== undefined) limits[key] = whole(key, options[key], 1)
  if (driver !== undefined && driver !== 'ioredis' && driver !== 'node-redis') {
    throw new TypeError(`driver must be 'ioredis' or 'node-redis', not ${JSON.stringify(driver)}`)
  }
  if (name !== undefined) connectionName(name)
  if (tls !== undefined && (typeof tls !== 'object' || tls === null)) throw new TypeError('tls must be an object with options of tls.connect')
  return new Locks(new Core(new Pool(new Dialer(sourceOf(to, options)), limits)))
}

/** The locks of a server. Use one for the whole process. All times are milliseconds. */
export class Locks implements AsyncDisposable {
  readonly #core: Core

  /** @internal Use `connect`. */
  constructor(core: Core) {
    this.#core = core
    INTERNALS.set(this, { pool: core.pool, grants: () => core.renewals.grants as Grant[], settled: () => keepProcessDuring(core.settled()) })
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
   * Runs `work` with the lock held, and releases it. The signal is aborted if the lock is lost meanwhile. The options may be left out.
   *
   * @throws as `lock`; what `work` throws; NotHeldError if the lock was lost before `work` was done.
   */
  async withLock<T>(name: string, options: LockOptions, work: Work<T>): Promise<T>
  async withLock<T>(name: string, work: Work<T>): Promise<T>
  async withLock<T>(name: string, ...given: [LockOptions, Work<T>] | [Work<T>]): Promise<T> {
    const work = given.at(-1)
    if (typeof work !== 'function') throw new TypeError('withLock() takes the name of the lock, its options, and the function to run')
    return during(await this.lock(name, given.length === 1 ? {} : (given[0] as LockOptions)), work)
  }

  /**
   * Acquires several locks together or none. Their order does not matter: two of them never block each other for good.
   *
   * @throws as `lock`.
   */
  async all(names: readonly string[], options: AllOptions = {}): Promise<Grant> {
    const request = new Request('all', namesOf(names), options)
    return (await acquire(this.#core, request)) ?? this.#refused(request)
  }

  /** As `all`, but resolves to null if they are not granted within `wait`. */
  async tryAll(names: readonly string[], options: AllOptions = {}): Promise<Grant | null> {
    return acquire(this.#core, new Request('all', namesOf(names), options))
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
    return infoOf(await this.#core.pool.ask(['LOCK.INFO', lockName(name)]))
  }

  /**
   * Ends one grant of somebody, for an administrator; the next waiter is served at once.
   *
   * @param token Of the grant, as `info` shows it.
   * @param reason The server's LOCK.WHY shows its first 128 bytes.
   * @throws NotHeldError if there is no such grant.
   */
  async break(name: string, token: number, reason?: string): Promise<void> {
    const words = ['LOCK.BREAK', lockName(name), 'TOKEN', String(whole('token', token, 1))]
    if (reason !== undefined) words.push('REASON', text('reason', reason))
    await this.#core.pool.ask(words)
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

  /**
   * Ends waits, releases what is still held, and closes all connections. Work under a grant is told: its signal is aborted, and its release
   * throws a NotHeldError. If the server is out of reach, the leases end what is held.
   */
  close(): Promise<void> {
    return keepProcessDuring(this.#close())
  }

  async #close(): Promise<void> {
    const { pool, renewals, losses, orphans } = this.#core
    this.#core.abortAll()
    orphans.stop()
    // Without a server, requests would go on until the ends of their leases.
    const late = networkTimer(pool.releasePatience, () => pool.close())
    // Whoever waits for a grant's loss or release sees the failure there.
    await Promise.allSettled((renewals.grants as Grant[]).map((grant) => grant.close()))
    await pool.quiet()
    await this.#core.settled()
    late.cancel()
    renewals.stop()
    losses.close()
    pool.close()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  /** Who holds a lock, for a message; null if the server does not answer soon. */
  #infoSoon(name: string): Promise<LockInfo | null> {
    return this.#core.pool.ask(['LOCK.INFO', name], { patience: INFO_MS }).then(infoOf).catch(() => null)
  }

  /** Throws the error of a request that is not granted in time, with who holds the lock. */
  async #refused(request: Request): Promise<never> {
    const infos = await Promise.all(request.names.map((name) => this.#infoSoon(name)))
    const holders = infos.flatMap((info) => info?.holders ?? [])
    const plain = request.names.flatMap((name, at) => plainKeyText(name, infos[at], request.names.length === 1) ?? [])
    const reasons = holders.length > 0 ? [`it is held by ${holders.map(holderText).join(', and ')}`, ...plain] : plain
    const who = reasons.length > 0 ? reasons.join('; ') : 'nobody holds it now'
    const after = request.wait === 0 ? 'at once; give a `wait` to queue for it' : `within ${request.wait} ms`
    throw new NotAcquiredError(`'${request.title}' was not granted ${after}: ${who}`, request.names, holders)
  }
}

/** What the test hooks need of a `Locks`. */
export interface Internals {
  readonly pool: Pool
  grants(): Grant[]
  /** Resolves when no work goes on without a caller. Keeps the process alive until then. */
  settled(): Promise<void>
}

const INTERNALS = new WeakMap<Locks, Internals>()

/** @internal */
export function internals(locks: Locks): Internals {
  return INTERNALS.get(locks) as Internals
}

/** The names of several locks. */
function namesOf(names: readonly string[]): string[] {
  if (!Array.isArray(names)) throw new TypeError('several locks are given as a list of names')
  return [...names]
}

/** Runs work under a grant, and releases it. */
async function during<T>(grant: Grant, work: Work<T>): Promise<T> {
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
