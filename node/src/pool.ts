/**
 * The package's own connections. Each is used by one request, one wait or one session at a time, and never by the application.
 *
 * Idle connections stay open, and do not keep the process alive.
 */
import type { Dialer } from './driver/driver.js'
import type { Command, Link } from './driver/link.js'
import { ConnectionError, FinalError, LockError, NoLeaderError, ServerError, UnreachableError, fromReply } from './errors.js'
import { type Timer, networkNow, networkTimer, pause } from './time.js'

/** Limits of the connections. Times are milliseconds. */
export interface PoolLimits {
  /** To open a connection to one node. */
  connectTimeout: number
  /** Time-out of a reply, counted from the end of the wait. */
  timeout: number
  /** How long a request without a wait is repeated over new connections while no reply comes, once the server has been reached. */
  patience: number
  /** Largest number of connections that wait or carry a session. Others come on top: a holder must be able to release. */
  maxConnections: number
}

/** Connections that stay open for the next request. */
const IDLE_MAX = 16
/** Requests without a wait that are under way at once: more of them take turns, rather than open more connections. */
const SHORT_MAX = 16
/** Interval of the look at time-outs and idle connections, in milliseconds. */
const SWEEP_MS = 100
/** First and longest pause before a request is repeated, in milliseconds. */
const BACKOFF_MS: readonly [number, number] = [10, 500]
/** An attempt to renew takes less time only if less is left of the lease, in milliseconds. */
const ATTEMPT_MS = 250
/** How long a reply may come after the end of a wait, in milliseconds. */
const LATE_MS = 1000
/** How long the only server there is may leave a release without a reply, in milliseconds. */
const RELEASE_MS = 2000

/** How a request is repeated. */
export interface Repetition {
  /** When to give up, in milliseconds from now. `limits.patience` unless given. */
  patience?: number
  /** Runs before each repetition, with whether an earlier attempt may have been carried out. */
  onRepeat?: (maybeApplied: boolean) => void
  /** Milliseconds that one attempt may take. `limits.timeout` unless given. */
  attempt?: number
  /** Whether nobody waits for it: pauses between attempts then do not keep the process alive. */
  isBackground?: boolean
}

export class Pool {
  readonly limits: PoolLimits
  #dialer: Dialer
  #idle: Link[] = []
  #open = new Set<Link>()
  /** Number of connections that wait or carry a session, or are being opened for that. */
  #waits = 0
  #sweeper: Timer | undefined
  #short = 0
  #shortQueue: Array<() => void> = []
  #whenQuiet: Array<() => void> = []
  #closed = false
  #hasWarned = false
  /** Called when a node refused a request because it does not lead. */
  onLeaderGone: () => void = () => {}

  constructor(dialer: Dialer, limits: PoolLimits) {
    this.#dialer = dialer
    this.limits = limits
  }

  get isClosed(): boolean {
    return this.#closed
  }

  /** Whether there are several nodes, of which another one may come to lead. */
  get hasNodes(): boolean {
    return this.#dialer.hasNodes
  }

  /** Whether the server has ever answered. An address that never did may be wrong. */
  get wasReached(): boolean {
    return this.#dialer.wasReached
  }

  /**
   * How long a release goes on without a reply, in milliseconds. Of several nodes another one may come to lead. The end of the lease ends the
   * grant of a server that is gone.
   */
  get releasePatience(): number {
    return this.#dialer.hasNodes ? this.limits.patience : RELEASE_MS
  }

  /** How long a reply may come after the end of a wait, in milliseconds. */
  get late(): number {
    return Math.min(this.limits.timeout, LATE_MS)
  }

  /**
   * Takes a connection for one user.
   *
   * @param isWait Whether it is for a wait or a session, which may last.
   * @param until When an attempt to open one ends, by `networkNow`.
   * @param isNew Whether it is opened now, to the node that leads now.
   * @throws ConnectionError if none can be opened; LockError if there are too many for a wait, or the pool is closed.
   */
  lease(isWait = false, until = Infinity, isNew = false): Link | Promise<Link> {
    if (isWait && this.#waits >= this.limits.maxConnections) {
      throw new LockError(`${this.limits.maxConnections} connections wait or carry a session: raise maxConnections, or wait for fewer locks at once`)
    }
    const link = isNew ? undefined : this.#idle.pop()
    if (!link) return this.#dial(isWait, until)
    link.isBusy = true
    this.setWait(link, isWait)
    link.keepProcess(true)
    this.#sweepLater()
    return link
  }

  /**
   * Looks after time-outs and idle connections, as long as there are any to look after. One timer is cheaper than one a request, and
   * connections in a row of requests need not be let go in between.
   */
  #sweepLater(): void {
    this.#sweeper ??= networkTimer(SWEEP_MS, () => {
      this.#sweeper = undefined
      const now = networkNow()
      let isNeeded = false
      for (const link of this.#open) isNeeded = link.sweep(now) || isNeeded
      if (isNeeded) this.#sweepLater()
    })
  }

  /** Takes a turn for a request without a wait; undefined if it may go on at once. `endShort` ends it. */
  startShort(): Promise<void> | undefined {
    if (this.#short < SHORT_MAX) {
      this.#short++
      return undefined
    }
    return new Promise((resolve) => this.#shortQueue.push(resolve))
  }

  endShort(): void {
    const next = this.#shortQueue.length > 0 ? this.#shortQueue.shift() : undefined
    if (next) return next()
    this.#short--
    if (this.#short === 0 && this.#whenQuiet.length > 0) for (const resolve of this.#whenQuiet.splice(0)) resolve()
  }

  /** Resolves when no request without a wait is under way. */
  async quiet(): Promise<void> {
    while (this.#short > 0) await new Promise<void>((resolve) => this.#whenQuiet.push(resolve))
  }

  /** Counts a connection that waits or carries a session, or no longer does. */
  setWait(link: Link, isWait: boolean): void {
    this.#waits += Number(isWait) - Number(link.isWait)
    link.isWait = isWait
  }

  async #dial(isWait: boolean, until: number): Promise<Link> {
    this.#refuseIfClosed()
    // It counts from now on.
    this.#waits += Number(isWait)
    try {
      const link = await this.#dialer.dial(this.limits.connectTimeout, until)
      if (this.#closed) {
        link.destroy()
        this.#refuseIfClosed()
      }
      this.#open.add(link)
      link.isSwept = true
      link.isBusy = true
      this.setWait(link, isWait)
      this.#sweepLater()
      link.onClosed(() => {
        this.#open.delete(link)
        this.setWait(link, false)
        const at = this.#idle.indexOf(link)
        if (at >= 0) this.#idle.splice(at, 1)
      })
      return link
    } finally {
      this.#waits -= Number(isWait)
    }
  }

  #refuseIfClosed(): void {
    if (this.#closed) throw new LockError('close() was called: make a new connect()')
  }

  /** Gives a connection back after its reply came. */
  giveBack(link: Link): void {
    if (link.isClosed) return
    this.setWait(link, false)
    if (this.#closed || this.#idle.length >= IDLE_MAX) return link.destroy()
    link.isBusy = false
    this.#idle.push(link)
    this.#sweepLater()
  }

  /** Closes a connection whose node refused a request because it does not lead, and the idle ones to the same node. */
  leaderIsGone(link: Link): void {
    for (const each of [link, ...this.#idle.filter(({ where }) => where === link.where)]) each.destroy('its node does not lead')
    this.#dialer.leaderIsGone()
    this.onLeaderGone()
  }

  /** No reply came on a connection in time. If there are several nodes, its node is the last one to be asked which one leads. */
  isSilent(link: Link): void {
    if (!this.#dialer.hasNodes) return
    for (const each of this.#idle.filter(({ where }) => where === link.where)) each.destroy('its node does not answer')
    this.#dialer.isSilent(link.where)
    this.onLeaderGone()
  }

  /** Milliseconds that one attempt may take of those that are left of a lease: there must be time for another connection, and for other nodes. */
  patienceFor(left: number): number {
    const part = left / (this.#dialer.hasNodes ? 4 : 2)
    return Math.min(this.limits.timeout, Math.max(20, part, Math.min(left, ATTEMPT_MS)))
  }

  /** Opens a connection that the pool does not count nor close. */
  dialApart(): Promise<Link> {
    return this.#dialer.dial(this.limits.connectTimeout)
  }

  /**
   * Sends commands over one connection, and repeats them all over another one when it breaks. Error replies are values.
   *
   * @throws UnreachableError if no attempt had replies; at once if the server has never been reached. LockError if it refuses the connection.
   */
  async request(commands: Command[], repetition: Repetition = {}): Promise<unknown[]> {
    const { patience = this.limits.patience, attempt = this.limits.timeout, onRepeat, isBackground = false } = repetition
    const until = networkNow() + patience
    let left = patience
    let backoff: Backoff | undefined
    for (;;) {
      let failure: ConnectionError
      const turn = this.startShort()
      if (turn) await turn
      try {
        const leased = this.lease(false, until)
        const link = leased instanceof Promise ? await leased : leased
        // The clock is asked again only after a pause.
        if (turn || leased instanceof Promise) left = until - networkNow()
        const replies = await link.callMany(commands, Math.max(1, Math.min(attempt, left)))
        const refused = replies.find((reply) => reply instanceof ServerError && reply.isOfNode) as ServerError | undefined
        if (refused === undefined) {
          this.giveBack(link)
          return replies
        }
        this.leaderIsGone(link)
        throw new ConnectionError(refused.message, false, true)
      } catch (error) {
        if (!(error instanceof ConnectionError)) throw error
        failure = error
      } finally {
        this.endShort()
      }
      const goesOn = this.wasReached && (await (backoff ??= new Backoff()).again(failure, until, undefined, isBackground))
      if (!goesOn) throw this.failed(failure)
      left = until - networkNow()
      onRepeat?.(failure.maybeApplied)
    }
  }

  /** As `lease`, for a request that must not be sent twice. Attempts to open a connection are repeated as those of `request`. */
  async leaseForOne(): Promise<Link> {
    const until = networkNow() + this.limits.patience
    const backoff = new Backoff()
    for (;;) {
      try {
        return await this.lease(false, until)
      } catch (error) {
        if (!(error instanceof ConnectionError)) throw error
        if (!this.wasReached || !(await backoff.again(error, until))) throw this.failed(error)
      }
    }
  }

  /** As `request`, with one command. An error reply becomes the error for the caller. */
  async ask(command: Command, repetition?: Repetition): Promise<unknown> {
    const [reply] = await this.request([command], repetition)
    if (reply instanceof ServerError) throw fromReply(reply)
    return reply
  }

  /** The error for the caller after the last attempt. */
  failed(error: ConnectionError): LockError {
    if (error instanceof FinalError) return error.outcome
    if (error.noLeader) {
      return new NoLeaderError(`no node leads (${error.message}): see \`npx portcullis cluster status URL\`; a majority of the nodes has to run`, error)
    }
    return new UnreachableError(`no reply from the server (${error.message}): does it run, and is this its address?`, error)
  }

  /** Warns, once, that a wait goes on although the server has never been reached: the address may be wrong. */
  warnIfNeverReached(error: ConnectionError): void {
    if (this.wasReached || this.#hasWarned) return
    this.#hasWarned = true
    process.emitWarning(`no reply from the server yet (${error.message}): does it run, and is this its address? The wait for the lock goes on`, 'PortcullisWarning')
  }

  /** Closes all connections. */
  close(): void {
    this.#closed = true
    for (const link of [...this.#open]) link.destroy('close() was called')
  }
}

/** Pauses between attempts: they double, and vary so that clients do not all come at once. */
export class Backoff {
  #next = BACKOFF_MS[0]

  /**
   * Waits for the next attempt after a failure. Resolves to false, at once, if that is not before `until`, by `networkNow`, or would
   * fail the same way. Keeps the process alive unless `isBackground`.
   */
  async again(failure: Error, until: number, signal?: AbortSignal, isBackground = false): Promise<boolean> {
    if (failure instanceof FinalError) return false
    const ms = this.#next * (0.5 + Math.random() / 2)
    this.#next = Math.min(this.#next * 2, BACKOFF_MS[1])
    if (networkNow() + ms >= until) return false
    await pause(ms, signal, !isBackground)
    return true
  }
}
