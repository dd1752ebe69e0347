/** A lock while it is held: its tokens, its lease, its loss and its release. */
import { EventEmitter } from 'node:events'
import type { Core } from './core.js'
import type { Command, Link } from './driver/link.js'
import { ConnectionError, LockError, NotHeldError, ServerError, UnreachableError, fromReply } from './errors.js'
import { Backoff } from './pool.js'
import { type Renewable, UNKNOWN, asGrantOf, settle } from './renewals.js'
import type { Ear } from './losses.js'
import type { Request } from './request.js'
import { type Timer, certain, leaseNow, networkNow, networkTimer } from './time.js'

// Node 18 knows the symbol from 18.18 on.
const asyncDispose: typeof Symbol.asyncDispose = ((Symbol as { asyncDispose?: symbol }).asyncDispose ??= Symbol('Symbol.asyncDispose')) as typeof Symbol.asyncDispose

/** Who asked for a grant. */
export interface Asker {
  owner: string
  /** Id of the request that was granted. */
  id: string
}

/** The connection that a grant is bound to. */
export interface Session {
  link: Link
  /** Name of the session, if it outlives its connection. */
  name: string | undefined
}

/**
 * A held lock, several held locks, or held permits. Release it once, in `finally` or by `await using`; it renews itself until then.
 *
 * What it says of itself is never more than true: the lease, less a margin, counts from before the last request that was answered, on this
 * process's monotonic clock.
 */
export class Grant implements Renewable, AsyncDisposable {
  /** The names that are held. */
  readonly names: readonly string[]
  /** The owner, as the server knows it. */
  readonly owner: string
  /** The fencing tokens, one a name. */
  readonly tokens: readonly number[]
  /** The lease, in milliseconds. */
  readonly lease: number
  /** @internal */ deadline: number
  /** @internal */ nextRenewal: number
  /** @internal */ isRenewing = false
  /** When the grace of its session is over, less a margin, since its connection has ended. */
  #detachedUntil = Infinity
  /** Connections of a session without a name on which the server does not answer, while it has the grant bound to one of them. */
  readonly #silent: Link[] = []
  /** @internal */ position = -1
  /** @internal */ ear: Ear | undefined
  readonly #core: Core
  readonly #request: Request
  readonly #requestId: string
  #session: Session | undefined
  #error: NotHeldError | undefined
  /** Made with the first listener: most grants have none. */
  #events: EventEmitter | undefined
  #releasing: Promise<void> | undefined
  #isClosed = false
  #controller: AbortController | undefined
  #lost: Promise<NotHeldError> | undefined
  #isAwaited = false
  #resolveLost: ((error: NotHeldError) => void) | undefined

  /** @internal Grants come from `Locks`. */
  constructor(core: Core, request: Request, { owner, id }: Asker, tokens: number[], deadline: number, link: Link, session: Session | undefined) {
    this.names = request.names
    this.owner = owner
    this.tokens = tokens
    this.lease = request.lease
    this.deadline = deadline
    this.nextRenewal = request.renew ? deadline - (request.lease * 2) / 3 : Infinity
    this.#core = core
    this.#request = request
    this.#requestId = id
    this.#session = session
    if (request.owner !== undefined) for (const name of this.names) core.holds.add(name, owner, request.lease)
    core.renewals.add(this)
    this.ear = core.losses.follow(link)
    if (session) this.#watch(session.link)
  }

  /** The name of the lock; the first one of several. */
  get name(): string {
    return this.names[0] as string
  }

  /** The fencing token, of the first lock if there are several. Send it along with each write that the lock protects. */
  get token(): number {
    return this.tokens[0] as number
  }

  /**
   * Whole milliseconds for which the lock is certainly held, unless somebody deletes it or breaks the grant: the rest of the lease, less a margin.
   * 0 if it is lost.
   */
  remaining(): number {
    return this.#error || this.#releasing ? 0 : Math.max(0, Math.floor(this.deadline - leaseNow()))
  }

  /** Whether the lock is lost, as far as this process knows. */
  get isLost(): boolean {
    return this.#error !== undefined || (!this.#releasing && leaseNow() >= this.deadline)
  }

  /**
   * Resolves with the reason when the lock is lost before its release. It is never rejected. From its first use to the release, the
   * grant keeps the process alive.
   */
  get lost(): Promise<NotHeldError> {
    if (!this.#lost) {
      this.#lost = this.#error ? Promise.resolve(this.#error) : new Promise((resolve) => (this.#resolveLost = resolve))
      this.#await()
    }
    return this.#lost
  }

  #await(): void {
    if (this.#isAwaited || this.#error || this.#releasing) return
    this.#isAwaited = true
    this.#core.renewals.await(1)
  }

  #unawait(): void {
    if (this.#isAwaited) this.#core.renewals.await(-1)
    this.#isAwaited = false
  }

  /**
   * Aborted when the lock is lost before its release; its reason is the NotHeldError. Pass it to what works under the lock. It keeps
   * the process alive as `lost` does.
   */
  get signal(): AbortSignal {
    if (!this.#controller) {
      this.#controller = new AbortController()
      if (this.#error) this.#controller.abort(this.#error)
      else this.#await()
    }
    return this.#controller.signal
  }

  /** Calls the listener when the lock is lost before its release. */
  on(event: 'lost', listener: (error: NotHeldError) => void): this {
    this.#events ??= new EventEmitter()
    this.#events.on(event, listener)
    return this
  }

  /** Removes a listener. */
  off(event: 'lost', listener: (error: NotHeldError) => void): this {
    this.#events?.off(event, listener)
    return this
  }

  /**
   * Restarts the lease now. Resolves with the milliseconds that are left, fewer than the lease if `maxHold` ends it earlier.
   *
   * @throws NotHeldError if the lock is lost; UnreachableError.
   */
  async renew(): Promise<number> {
    this.#refuseIfReleased()
    if (this.#error) throw this.#error
    const { pool } = this.#core
    const sent = leaseNow()
    const before = this.deadline
    if (this.#session) await this.renewBound()
    else {
      const left = this.deadline - sent
      const replies = await pool.request(this.renewalCommands(), { patience: Math.max(pool.limits.timeout, left), attempt: pool.patienceFor(left) })
      const failed = replies.find((reply) => reply instanceof ServerError) as ServerError | undefined
      settle(this, sent, replies)
      if (failed) throw this.#error ?? fromReply(failed)
    }
    if (this.#error) throw this.#error
    if (this.deadline === before) throw new UnreachableError(`'${this.#request.title}' could not be renewed: no reply came in time`)
    return Math.max(0, this.deadline - sent)
  }

  /** @internal */
  get isBound(): boolean {
    return this.#session !== undefined
  }

  /** @internal Renews it on the connection that it is bound to, or, if the server does not answer there, on a new one. */
  async renewBound(): Promise<void> {
    const sent = leaseNow()
    try {
      await this.#renewOn(this.#session, sent)
    } finally {
      // Without an answer it is tried again.
      if (this.position >= 0 && this.nextRenewal <= leaseNow()) settle(this, sent, undefined)
    }
  }

  async #renewOn(session: Session | undefined, sent: number): Promise<void> {
    // Somebody resumes it already, if it is closed.
    if (!session || session.link.isClosed) return
    const { link } = session
    let late: Timer | undefined
    const silence = new Promise<undefined>((resolve) => {
      late = networkTimer(this.#core.pool.patienceFor(this.deadline - sent), () => resolve(undefined))
    })
    const replies = await Promise.race([link.callMany(this.renewalCommands(), Infinity).catch(() => undefined), silence]).finally(() => late?.cancel())
    if (this.#releasing || this.#error || this.#session !== session || link.isClosed) return
    if (replies) settle(this, sent, replies)
    else await this.#rebind(session)
  }

  /**
   * Binds it to a new connection, because the server does not answer on the one that it is bound to. That one stays open until then: a leader
   * that sees its end would end the grant.
   */
  async #rebind({ link: before, name }: Session): Promise<void> {
    const { pool } = this.#core
    pool.isSilent(before)
    let link: Link | undefined
    try {
      link = await this.#bound(name)
    } catch (error) {
      if (!(error instanceof ConnectionError)) throw error
    }
    if (!link || this.#session?.link !== before) return
    this.#session = { link, name }
    this.hear(link)
    this.#watch(link)
    // The same leader still has a grant without a name bound to the old connection.
    if (name === undefined && link.where === before.where) this.#silent.push(before)
    else before.destroy()
  }

  /**
   * A new connection that the grant is bound to, after the server has said what is left of the lease; undefined if the grant has ended.
   *
   * @throws ConnectionError.
   */
  async #bound(name: string | undefined): Promise<Link | undefined> {
    const { pool } = this.#core
    const timeout = pool.patienceFor(this.deadline - leaseNow())
    const link = await pool.lease(false, networkNow() + timeout)
    pool.setWait(link, true)
    const start: Command[] = name === undefined ? [] : [['LOCK.SESSION', name, 'GRACE', String(this.#request.grace)]]
    const isRenewed = this.nextRenewal !== Infinity
    const asks = isRenewed ? this.renewalCommands() : this.names.map((each, at) => this.#request.keeping(each, this.owner, this.#tokenAt(at)))
    const sent = leaseNow()
    const replies = await link.callMany([...start, ...asks], timeout)
    const ofNode = replies.find((reply) => reply instanceof ServerError && reply.isOfNode) as ServerError | undefined
    if (ofNode) {
      pool.leaderIsGone(link)
      throw new ConnectionError(ofNode.message, false, true)
    }
    if (name !== undefined) {
      const grants = replies.shift()
      if (grants instanceof ServerError) this.lose(this.leaseEnded(`its session could not be resumed: ${grants.message}`))
      else if (Number(grants) === 0) this.lose(this.leaseEnded('its session has ended, or the server has restarted without its data'))
    }
    if (!this.#error && !this.#releasing) {
      this.#detachedUntil = Infinity
      settle(this, sent, replies)
    }
    if (!this.#error && !this.#releasing) return link
    link.destroy()
    return undefined
  }

  /** @internal */
  answered(sent: number, left: number): void {
    this.deadline = Math.min(sent + certain(left), this.#detachedUntil)
  }

  /** @internal */
  loseEnded(): void {
    const isOfSession = this.deadline >= this.#detachedUntil
    this.lose(this.leaseEnded(isOfSession ? 'its session could not be resumed in time' : 'its lease ended, and no renewal got through'))
  }

  /**
   * Asks the server whether the lock is still held by these tokens.
   *
   * @throws UnreachableError.
   */
  async check(): Promise<boolean> {
    if (this.#error || this.#releasing) return false
    const replies = await this.#core.pool.request(this.checkCommands())
    // Whoever was not answered in time is no holder, although the server may still have the grant.
    return this.checked(replies) && !this.isLost
  }

  /** @internal As `check`. The refusal of a renewal tells why it is not held. */
  async confirm(): Promise<void> {
    const { pool } = this.#core
    const replies = await pool.request(this.checkCommands())
    if (replies.some((reply) => reply instanceof ServerError) || replies.every((reply) => Number(reply) === 1)) return
    if (!this.isLost && !this.#releasing) settle(this, leaseNow(), await pool.request(this.renewalCommands()))
    if (!this.#releasing) this.checked(replies)
  }

  /** @internal Whether the connection by whose channel its loss is told has closed. A session comes back by itself. */
  get isOrphan(): boolean {
    return this.ear !== undefined && this.ear.link.isClosed && this.#session === undefined && !this.#releasing
  }

  /**
   * @internal The commands that make the connection they are sent on the grant's. The server carries out a repeated request once: it binds
   * the grant to the connection, and keeps the lease if the repeated one ends no later. It remembers few requests of a named owner, and one
   * that is forgotten would be a new one. So such a grant is renewed instead, or left alone if it does not renew itself.
   */
  takeOverCommands(): Command[] {
    const isRenewed = this.nextRenewal !== Infinity
    // The server's clock may be ahead of this process's: the rest of the lease by the latter would make it longer.
    const lease = isRenewed ? Math.max(1, this.remaining()) : 1
    if (this.#request.owner === undefined) return [this.#request.acquire(this.owner, lease, 0, this.#requestId)]
    return isRenewed ? this.renewalCommands() : []
  }

  /** @internal Whether the server may have replaced its token. */
  get mayBeUpgraded(): boolean {
    return this.#request.mayBeUpgraded
  }

  /** @internal Takes the replies to `takeOverCommands` over, which came by this connection. */
  takenOver(replies: unknown[], sent: number, link: Link): void {
    if (this.position < 0) return
    const refused = replies.find((reply) => reply instanceof ServerError) as ServerError | undefined
    if (this.#request.owner !== undefined) settle(this, sent, replies)
    else if (refused) {
      const error = fromReply(refused)
      if (error instanceof NotHeldError) this.lose(asGrantOf(this, error))
    } else {
      const tokens = this.#request.tokens(replies[0])
      if (!tokens?.every((token, at) => token === this.tokens[at])) {
        // It is another grant, or none.
        if (tokens) this.#releaseLater(this.names.map((name, at) => this.#request.release(name, this.owner, false, tokens[at])), 1000)
        return this.lose(this.leaseEnded(UNKNOWN))
      }
    }
    if (!refused) this.hear(link)
  }

  /** @internal */
  checkCommands(): Command[] {
    return this.names.map((name, at) => ['LOCK.CHECK', name, String(this.tokens[at])])
  }

  /** @internal Takes the replies to `checkCommands` over. */
  checked(replies: unknown[]): boolean {
    for (const reply of replies) if (reply instanceof ServerError) throw fromReply(reply)
    const held = replies.every((reply) => Number(reply) === 1)
    if (!held) this.lose(this.leaseEnded('its token no longer holds it'))
    return held
  }

  /**
   * Releases the lock; the server grants it to the first waiter. Later calls give the first one's promise.
   *
   * @throws NotHeldError if the lock was lost before, also by `locks.close()`: the work since then was not protected. UnreachableError if no
   * reply came within two seconds, or, from several nodes, within `patience`. The package then goes on trying until the end of the lease,
   * which ends the grant.
   */
  release(): Promise<void> {
    return (this.#releasing ??= this.#release())
  }

  [asyncDispose](): Promise<void> {
    return this.release()
  }

  async #release(): Promise<void> {
    if (this.#isClosed) throw this.#error
    const remaining = this.deadline - leaseNow()
    this.#end()
    const commands = this.#releaseCommands()
    if (this.#error) {
      // If renewals did not get through, the server may still have the grant for a moment.
      if (this.#request.owner === undefined) this.#releaseLater(commands, 1000)
      this.#endSession(false)
      throw this.#error
    }
    await this.#giveBack(commands, remaining)
  }

  /** @internal Releases it because its locks are closed, after whoever works under it was told. */
  async close(): Promise<void> {
    if (this.#releasing || this.#error) return
    const remaining = this.deadline - leaseNow()
    this.#isClosed = true
    this.lose(this.leaseEnded('close() was called on the locks'))
    await this.#giveBack(this.#releaseCommands(), remaining)
  }

  /** The commands that release it. The process does not count it as a hold of its owner from now on. */
  #releaseCommands(): Command[] {
    const isNamed = this.#request.owner !== undefined
    // A repeated release of a grant with an owner of its own is known by its token; one of several holds needs an id.
    const id = isNamed ? this.#core.nextId() : undefined
    return this.names.map((name, at) => {
      // An owner of its own has one hold: its request was carried out once.
      const all = isNamed && this.#core.holds.remove(name, this.owner)
      return this.#request.release(name, this.owner, all, this.#tokenAt(at), id)
    })
  }

  /** Sends commands without a caller who waits for them. */
  #releaseLater(commands: Command[], patience: number): void {
    this.#core.background(this.#core.pool.request(commands, { patience, isBackground: true }).catch(() => {}))
  }

  /** @param remaining Milliseconds until the end of the lease. */
  async #giveBack(commands: Command[], remaining: number): Promise<void> {
    const { pool, holds } = this.#core
    const ends = networkNow() + remaining
    let maybeReleased = false
    let isClean = false
    try {
      const patience = Math.min(pool.releasePatience, Math.max(remaining, 1000))
      const replies = await pool.request(commands, { patience, onRepeat: (applied) => (maybeReleased ||= applied) })
      isClean = true
      for (const reply of replies) {
        if (!(reply instanceof ServerError)) continue
        const error = fromReply(reply)
        if (!(error instanceof NotHeldError)) throw error
        // An earlier attempt has released it.
        if (maybeReleased) continue
        const lost = asGrantOf(this, error)
        this.lose(lost)
        throw lost
      }
    } catch (error) {
      if (error instanceof UnreachableError) {
        if (this.#request.owner !== undefined) for (const name of this.names) holds.markSurplus(name, this.owner)
        // The server may come back before the lease ends.
        this.#releaseLater(commands, ends - networkNow())
      }
      throw error
    } finally {
      this.#endSession(isClean)
    }
  }

  #refuseIfReleased(): void {
    if (this.#releasing) throw new LockError(`lock '${this.#request.title}' was released by release()`)
  }

  /** The token of the grant of a name, unless the server may have replaced it. */
  #tokenAt(at: number): number | undefined {
    return this.#request.mayBeUpgraded ? undefined : this.tokens[at]
  }

  /** @internal */
  renewalCommands(): Command[] {
    const isNamed = this.#request.owner !== undefined
    return this.names.map((name, at) => {
      const lease = isNamed ? Math.max(this.#core.holds.lease(name, this.owner), this.lease) : this.lease
      return this.#request.renewal(name, this.owner, lease, this.#tokenAt(at))
    })
  }

  /** @internal */
  leaseEnded(why: string): NotHeldError {
    return new NotHeldError(`lock '${this.#request.title}' is not held by '${this.owner}': ${why}`, why)
  }

  /** @internal Records the loss. Only the first one counts. */
  lose(error: NotHeldError): void {
    if (this.#error) return
    this.#error = error
    this.#end()
    this.#resolveLost?.(error)
    this.#controller?.abort(error)
    this.#events?.emit('lost', error)
  }

  /** It is renewed, and its loss awaited, no longer. */
  #end(): void {
    this.#core.renewals.remove(this)
    this.hear(undefined)
    this.#unawait()
  }

  /** @internal Hears of the loss by way of another connection, or not at all. */
  hear(link: Link | undefined): void {
    if (this.ear) this.#core.losses.leave(this.ear)
    this.ear = link && this.#core.losses.follow(link)
  }

  #watch(link: Link): void {
    link.keepProcess(false)
    link.onClosed(() => {
      if (this.#releasing || this.#error || !this.#session || (this.#session.link !== link && !this.#silent.includes(link))) return
      if (this.#session.name === undefined) this.lose(this.leaseEnded('the connection that it is bound to was closed'))
      else this.#core.background(this.#resume(this.#session.name))
    })
  }

  /** Names the session on a new connection after the old one broke. A leader that has seen the end ends the grant with the grace. */
  async #resume(name: string): Promise<void> {
    const backoff = new Backoff()
    this.#detachedUntil = Math.min(this.#detachedUntil, leaseNow() + certain(this.#request.grace ?? 0))
    this.deadline = Math.min(this.deadline, this.#detachedUntil)
    this.#core.renewals.wakeBy(this.deadline)
    const until = networkNow() + Math.max(0, this.deadline - leaseNow())
    while (!this.#releasing && !this.#error) {
      try {
        const link = await this.#bound(name)
        if (!link) return
        this.#session = { link, name }
        this.hear(link)
        return this.#watch(link)
      } catch (error) {
        if (!(error instanceof ConnectionError)) throw error
        if (this.#core.pool.isClosed || !(await backoff.again(error, until))) return this.loseEnded()
      }
    }
  }

  #endSession(isClean: boolean): void {
    const session = this.#session
    this.#session = undefined
    if (!session) return
    for (const link of this.#silent) link.destroy()
    if (isClean && session.name === undefined) this.#core.pool.giveBack(session.link)
    else session.link.destroy()
  }
}
