/** Semaphores, latches, guards and rate limits. */
import type { Core } from './core.js'
import type { Link } from './driver/link.js'
import { ConnectionError, LockError, ServerError, fromReply } from './errors.js'
import type { Grant } from './grant.js'
import { Backoff } from './pool.js'
import { known, lockName, milliseconds, whole } from './options.js'
import { type PermitOptions, Request } from './request.js'
import { networkNow } from './time.js'

/** A semaphore, whose permits several holders share. */
export class Semaphore {
  readonly #try: (request: Request) => Promise<Grant | null>
  readonly #acquire: (request: Request) => Promise<Grant>

  /** @internal Use `locks.semaphore`. */
  constructor(
    readonly name: string,
    readonly limit: number,
    tryAcquire: (request: Request) => Promise<Grant | null>,
    acquire: (request: Request) => Promise<Grant>,
  ) {
    this.#try = tryAcquire
    this.#acquire = acquire
    lockName(name)
  }

  /**
   * Acquires permits.
   *
   * @throws NotAcquiredError if they are not granted within `wait`; LockError with the code `LIMIT` if the semaphore has another limit.
   */
  async acquire(options: PermitOptions = {}): Promise<Grant> {
    return this.#acquire(new Request('semaphore', [this.name], options, this.limit))
  }

  /** As `acquire`, but resolves to null if the permits are not granted within `wait`. */
  async tryAcquire(options: PermitOptions = {}): Promise<Grant | null> {
    return this.#try(new Request('semaphore', [this.name], options, this.limit))
  }
}

/** A latch: one client sets it to a number, some count it down, and others wait until it opens. */
export class Latch {
  readonly #core: Core

  /** @internal Use `locks.latch`. */
  constructor(
    core: Core,
    readonly name: string,
  ) {
    this.#core = core
    lockName(name)
  }

  /** Sets the count. Resolves to false if the latch is already counting. After `ttl` milliseconds the server deletes it. */
  async set(count: number, options: { ttl?: number } = {}): Promise<boolean> {
    const { ttl } = known('set()', options, ['ttl'])
    const time = ttl === undefined ? [] : ['PX', String(whole('ttl (ms)', ttl, 1))]
    return (await this.#core.pool.ask(['LATCH.SET', this.name, String(whole('count', count, 1)), ...time])) === 1
  }

  /** Counts down. Resolves with the count that is left. After a lost reply it is unknown whether it was counted: UnreachableError. */
  async down(by = 1): Promise<number | null> {
    const { pool } = this.#core
    const command = ['LATCH.DOWN', this.name, String(whole('by', by, 1))]
    const link = await pool.leaseForOne()
    try {
      const left = await link.call(command, pool.limits.timeout)
      pool.giveBack(link)
      return left === null ? null : Number(left)
    } catch (error) {
      if (error instanceof ConnectionError) throw pool.failed(error)
      pool.giveBack(link)
      throw error instanceof ServerError ? fromReply(error) : error
    }
  }

  /**
   * Waits until the latch opens, also for one that is not set yet. Resolves to false if it does not open within `wait` milliseconds;
   * without `wait`, it waits without limit.
   *
   * @throws the reason of `signal`; UnreachableError.
   */
  async wait(options: { wait?: number; signal?: AbortSignal } = {}): Promise<boolean> {
    const { wait = Infinity, signal } = known('wait()', options, ['wait', 'signal'])
    milliseconds('wait', wait)
    const { pool } = this.#core
    const end = networkNow() + wait
    const patienceEnds = networkNow() + pool.limits.patience
    const backoff = new Backoff()
    for (;;) {
      signal?.throwIfAborted()
      // WAIT 0 would wait without limit.
      const rest = Math.max(1, Math.ceil(end - networkNow()))
      // A node that hangs must not stop the wait for ever. A latch has no places to lose.
      const slice = pool.hasNodes ? Math.min(rest, pool.limits.timeout) : rest
      const left = slice === Infinity ? 0 : slice
      let abort: (() => void) | undefined
      let link: Link | undefined
      try {
        const leased = (link = await pool.lease(true, end + pool.late))
        abort = () => leased.destroy('the wait was aborted')
        signal?.addEventListener('abort', abort, { once: true })
        const opened = await link.call(['LATCH.AWAIT', this.name, 'WAIT', String(left)], left === 0 ? Infinity : left + pool.late)
        pool.giveBack(link)
        if (opened !== null || slice === rest) return opened !== null
      } catch (error) {
        signal?.throwIfAborted()
        if (error instanceof ServerError) throw fromReply(error)
        if (!(error instanceof ConnectionError)) throw error
        if (link) pool.isSilent(link)
        if (networkNow() > patienceEnds) pool.warnIfNeverReached(error)
        if (!(await backoff.again(error, end, signal))) throw pool.failed(error)
      } finally {
        if (abort) signal?.removeEventListener('abort', abort)
      }
    }
  }
}

/** A guarded resource. */
export class Guard {
  readonly #core: Core

  /** @internal Use `locks.guard`. */
  constructor(
    core: Core,
    readonly resource: string,
  ) {
    this.#core = core
    lockName(resource)
  }

  /**
   * Call it right before a write to a store that cannot compare tokens itself.
   *
   * @throws StaleTokenError if a larger token was seen: do not write.
   */
  async write(token: number): Promise<void> {
    await this.#core.pool.ask(['LOCK.GUARD', this.resource, String(whole('token', token, 1))])
  }
}

/** A rate limit. */
export interface ThrottleOptions {
  /** Requests at once, besides the first. */
  maxBurst: number
  /** Requests a period. */
  count: number
  /** The period in milliseconds; whole seconds. */
  period: number
  /** How much this request counts. 1 unless given. */
  quantity?: number
}

/** What became of a request that counts against a rate limit. */
export interface Throttled {
  /** Whether the request has to wait. It is not counted then. */
  limited: boolean
  limit: number
  remaining: number
  /** Milliseconds, in whole seconds, after which the request can succeed; null if it is not limited. */
  retryAfter: number | null
  /** Milliseconds, in whole seconds, after which the limit is as new. */
  resetAfter: number
}

export async function throttle(core: Core, key: string, options: ThrottleOptions): Promise<Throttled> {
  const { maxBurst, count, period, quantity = 1 } = known('throttle()', options, ['maxBurst', 'count', 'period', 'quantity'])
  whole('period (ms)', period, 1000)
  if (period % 1000 !== 0) throw new RangeError(`period (ms) must be whole seconds, not ${period}`)
  const numbers = [whole('maxBurst', maxBurst, 0), whole('count', count, 1), period / 1000, whole('quantity', quantity, 0)]
  const reply = await core.pool.ask(['CL.THROTTLE', lockName(key), ...numbers.map(String)])
  if (!Array.isArray(reply) || reply.length !== 5) throw new LockError(`CL.THROTTLE answered ${JSON.stringify(reply)}`)
  const [limited, limit, remaining, retry, reset] = reply.map(Number) as [number, number, number, number, number]
  return { limited: limited === 1, limit, remaining, retryAfter: retry < 0 ? null : retry * 1000, resetAfter: reset * 1000 }
}
