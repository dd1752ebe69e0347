/**
 * Acquires locks: sends the request again when the connection breaks, and cleans up when it is given up.
 *
 * ```text
 *   acquire ─▶ attempt ─┬─▶ granted ─▶ Grant
 *               ▲       ├─▶ aborted: the connection is closed ─▶ reclaim: takes the place in the queue over, and gives back a grant
 *               │       └─▶ the connection broke ─┐
 *               └───── with the same request id ──┘
 * ```
 */
import type { Core } from './core.js'
import type { Command, Link } from './driver/link.js'
import { ConnectionError, LockError, NotHeldError, ServerError, UnreachableError, fromReply } from './errors.js'
import { Grant, type Session } from './grant.js'
import { Backoff, type Pool } from './pool.js'
import type { Request } from './request.js'
import { type Timer, certain, leaseNow, networkNow, networkTimer } from './time.js'

/**
 * Number of times that a request is sent again because its wait ended long before its time-out. A late copy of it can cause that. So
 * can an administrator, who must be able to end the wait.
 */
const EARLY_ENDS_MAX = 3
/** The shortest time that a reply is given, in milliseconds. */
const REPLY_MS = 50

/** What an attempt leads to. */
type Outcome = Grant | null | ConnectionError | 'again'

/** The state of a request over all its attempts. */
interface Attempts {
  owner: string
  id: string
  begun: number
  /** When to give up without a reply if it does not wait, by `networkNow`. */
  patienceEnds: number
  backoff: Backoff | undefined
  /** Whether the server may have granted it in a reply that was lost. */
  maybeGranted: boolean
  /** Whether the last attempt ended without a word of its node, which may lead no more. */
  isSilent: boolean
  /** Why the last attempt had no reply; undefined if it had one. */
  failure: ConnectionError | undefined
  earlyEnds: number
}

/**
 * Acquires what the request says. Resolves to null if it is not granted within the wait.
 *
 * @throws the reason of the request's signal; DeadlockError; UnreachableError; other LockErrors, such as for a log-in that is wrong.
 */
export async function acquire(core: Core, request: Request): Promise<Grant | null> {
  const { signal } = request
  refuseIfEnded(core, request)
  const id = core.nextId()
  const attempts: Attempts = {
    owner: request.owner ?? id,
    id,
    begun: leaseNow(),
    patienceEnds: networkNow() + core.pool.limits.patience,
    backoff: undefined,
    maybeGranted: false,
    isSilent: false,
    failure: undefined,
    earlyEnds: 0,
  }
  for (;;) {
    let outcome: Outcome
    try {
      outcome = await attempt(core, request, attempts)
    } catch (error) {
      giveUp(core, request, attempts)
      throw error
    }
    attempts.failure = outcome instanceof ConnectionError ? outcome : undefined
    if (outcome === 'again') continue
    if (!(outcome instanceof ConnectionError)) {
      if (outcome === null) giveUp(core, request, attempts)
      return outcome
    }
    if (request.wait > 0 && networkNow() > attempts.patienceEnds) core.pool.warnIfNeverReached(outcome)
    const again = await (attempts.backoff ??= new Backoff()).again(outcome, giveUpAt(core, request, attempts), signal)
    if (again && !signal?.aborted && !core.isClosing) continue
    giveUp(core, request, attempts)
    refuseIfEnded(core, request)
    throw core.pool.failed(outcome)
  }
}

function refuseIfEnded(core: Core, request: Request): void {
  request.signal?.throwIfAborted()
  if (core.isClosing) throw new LockError('close() was called: make a new connect()')
}

/** Milliseconds that are left of the wait; negative after it. */
function waitLeft(request: Request, attempts: Attempts): number {
  return request.wait - (leaseNow() - attempts.begun)
}

/**
 * When a request without a reply is given up, by `networkNow`. One that waits goes on until the end of its wait, also if the server has never
 * been reached: it may start later than this process. Without a wait, an address that never answered is taken for a wrong one.
 */
function giveUpAt(core: Core, request: Request, attempts: Attempts): number {
  if (request.wait > 0) return networkNow() + waitLeft(request, attempts)
  return core.pool.wasReached ? attempts.patienceEnds : 0
}

/** Milliseconds until the last moment for a reply. */
function replyIn(core: Core, request: Request, attempts: Attempts): number {
  const left = request.wait > 0 ? waitLeft(request, attempts) + core.pool.late : Math.min(core.pool.limits.timeout, attempts.patienceEnds - networkNow())
  return Math.max(left, REPLY_MS)
}

/** Makes one attempt. It leads to 'again' if the next one is to follow at once. */
function attempt(core: Core, request: Request, attempts: Attempts): Outcome | Promise<Outcome> {
  const { pool } = core
  if (request.wait > 0 && waitLeft(request, attempts) <= 0) {
    if (attempts.maybeGranted) return attempts.failure ?? new ConnectionError('the wait is over', true)
    // Nobody knows whether the lock is held.
    if (attempts.failure) throw pool.failed(attempts.failure)
    return null
  }
  const isShort = request.wait === 0 && !request.session
  const turn = isShort ? pool.startShort() : undefined
  const until = request.wait > 0 ? networkNow() + replyIn(core, request, attempts) : attempts.patienceEnds
  return attemptOn(turn ? turn.then(() => pool.lease(false, until)) : pool.lease(!isShort, until, attempts.isSilent && pool.hasNodes), core, request, attempts, isShort)
}

async function attemptOn(
  leased: Link | Promise<Link>,
  core: Core,
  request: Request,
  attempts: Attempts,
  isShort: boolean,
): Promise<Outcome> {
  const { pool } = core
  const { signal } = request
  let link: Link | undefined
  let session: Session | undefined
  let hasTurn = isShort
  const endTurn = () => {
    if (hasTurn) pool.endShort()
    hasTurn = false
  }
  const abort = () => link?.destroy('the wait was aborted')
  try {
    link = leased instanceof Promise ? await leased : leased
    if (signal?.aborted || core.isClosing) {
      pool.giveBack(link)
      refuseIfEnded(core, request)
    }
    signal?.addEventListener('abort', abort, { once: true })
    // close() ends these; it waits for requests without a wait.
    if (!isShort) core.addAbort(abort)
    const sent = leaseNow()
    if (request.session) {
      session = { link, name: request.grace === undefined ? undefined : attempts.id }
      const within = Math.min(replyIn(core, request, attempts), pool.limits.timeout)
      if (session.name !== undefined) await link.call(['LOCK.SESSION', session.name, 'GRACE', String(request.grace)], within)
    }
    // A connection that took the rest of the wait still asks.
    const wait = request.wait > 0 ? Math.max(1, waitLeft(request, attempts)) : 0
    const command = request.acquire(attempts.owner, longestLease(core, request, attempts.owner), wait, attempts.id)
    const isLong = wait > pool.limits.timeout
    const reply = isLong ? await replyOrSilence(link, command, pool, session) : await link.call(command, replyIn(core, request, attempts))
    if (reply === SILENCE) {
      attempts.maybeGranted = attempts.isSilent = true
      return 'again'
    }
    const tokens = request.tokens(reply)
    if (tokens === undefined) {
      free(pool, link, session)
      return notGranted(attempts, sent, wait)
    }
    if (!tokens.every(Number.isSafeInteger)) {
      free(pool, link, session)
      throw new LockError(`the reply ${JSON.stringify(reply)} is no fencing token`)
    }
    if (!session) pool.giveBack(link)
    const outcome = granted(core, request, attempts, tokens, sent, link, session)
    // The question how much of the lease is left takes a turn of its own. If all kept theirs while they ask, none would get another.
    endTurn()
    return outcome instanceof Grant ? outcome : await outcome
  } catch (error) {
    if (error instanceof ServerError && link) {
      if (!error.isOfNode) free(pool, link, session)
      return refused(error, link, core, request, attempts)
    }
    return broken(error, core, request, attempts)
  } finally {
    endTurn()
    if (!isShort) core.removeAbort(abort)
    signal?.removeEventListener('abort', abort)
  }
}

/** Without a grant or a lost connection, the connection is free for the next request, unless a session has its name. */
function free(pool: Pool, link: Link, session: Session | undefined): void {
  if (session?.name === undefined) pool.giveBack(link)
  else link.destroy()
}

/** What an error reply leads to. */
function refused(error: ServerError, link: Link, core: Core, request: Request, attempts: Attempts): Outcome {
  if (error.isOfNode) {
    core.pool.leaderIsGone(link)
    return broken(new ConnectionError(error.message, false, true), core, request, attempts)
  }
  const understood = fromReply(error)
  if (!(understood instanceof NotHeldError)) return broken(understood, core, request, attempts)
  // An earlier attempt was granted, its reply was lost, and the grant has ended since. The next attempt is a new request.
  attempts.id = core.nextId()
  attempts.maybeGranted = false
  return 'again'
}

/** What a lost connection leads to; throws any other error. */
function broken(error: unknown, core: Core, request: Request, attempts: Attempts): Outcome {
  if (error instanceof ConnectionError) {
    attempts.maybeGranted ||= error.maybeApplied
    if (!core.isClosing && !request.signal?.aborted) return error
  }
  refuseIfEnded(core, request)
  throw error
}

const SILENCE = Symbol('silence')

/**
 * The reply to a request that waits, or SILENCE after the time-out. The next attempt then takes the place in the queue over: a reply
 * that was lost, or a node that hangs, does not stop the wait for ever.
 */
async function replyOrSilence(link: Link, command: Command, pool: Pool, session: Session | undefined): Promise<unknown> {
  const { timeout } = pool.limits
  const call = link.call(command, Infinity)
  let timer: Timer | undefined
  const silence = new Promise<typeof SILENCE>((resolve) => (timer = networkTimer(timeout, () => resolve(SILENCE))))
  const reply = await Promise.race([call, silence]).finally(() => timer?.cancel())
  if (reply === SILENCE) {
    // The next attempt counts in its place.
    pool.setWait(link, false)
    // When the place is taken over, this connection gets nil, and is free.
    const late = networkTimer(timeout, () => link.destroy('another connection took its place'))
    void call.then(() => free(pool, link, session), () => {}).finally(() => late.cancel())
  }
  return reply
}

/** An owner has one lease. The acquisition restarts it, and must not shorten it for the owner's other grants. */
function longestLease(core: Core, request: Request, owner: string): number {
  if (request.owner === undefined) return request.lease
  return request.names.reduce((longest, name) => Math.max(longest, core.holds.lease(name, owner)), request.lease)
}

function notGranted(attempts: Attempts, sent: number, wait: number): null | 'again' {
  // A late copy of the request, on a connection that was given up, took this attempt's place in the queue. The next attempt takes
  // it back.
  const isEarly = wait > 0 && leaseNow() - sent < wait - wait / 8
  if (attempts.maybeGranted && isEarly && attempts.earlyEnds++ < EARLY_ENDS_MAX) return 'again'
  attempts.maybeGranted = false
  return null
}

/** Makes the grant. It is a promise only if the server has to tell how much of the lease is left. */
function granted(
  core: Core,
  request: Request,
  attempts: Attempts,
  tokens: number[],
  sent: number,
  link: Link,
  session: Session | undefined,
): Grant | Promise<Grant | 'again'> {
  const isNested = request.owner !== undefined && request.names.some((name) => core.holds.lease(name, attempts.owner) > 0)
  const lease = request.maxHold === undefined ? request.lease : Math.min(request.lease, request.maxHold)
  // The lease began with the grant, which may be long after the request.
  const isUnclear = isNested || attempts.maybeGranted || leaseNow() - sent > lease / 3
  attempts.maybeGranted = false
  const grant = new Grant(core, request, attempts, tokens, isUnclear ? leaseNow() + lease : sent + certain(lease), link, session)
  if (request.signal?.aborted || core.isClosing) {
    core.background(grant.release().catch(() => {}))
    refuseIfEnded(core, request)
  }
  return isUnclear ? renewed(core, request, attempts, grant) : grant
}

/** Renews a new grant, of which the server may have ended a part. */
async function renewed(core: Core, request: Request, attempts: Attempts, grant: Grant): Promise<Grant | 'again'> {
  try {
    await grant.renew()
    return grant
  } catch (error) {
    core.background(grant.release().catch(() => {}))
    // The lease ended before this process had the grant, or the server was out of reach. The wait goes on, if it is not over.
    const goesOn = error instanceof NotHeldError || (error instanceof UnreachableError && leaseNow() - attempts.begun < request.wait)
    if (!goesOn || request.wait === 0) throw error
    attempts.id = core.nextId()
    return 'again'
  }
}

/** Cleans up after a request that ends without a grant, in the background. */
function giveUp(core: Core, request: Request, attempts: Attempts): void {
  if (attempts.maybeGranted) core.background(reclaim(core, request, attempts.owner, attempts.id))
}

/**
 * Gives back what the server may have granted, or may still grant, on a connection that broke before the reply. The request is sent
 * again without a wait: that ends the older copy's wait, or gives the token of its grant, which is then released.
 */
async function reclaim(core: Core, request: Request, owner: string, id: string): Promise<void> {
  const { pool, holds } = core
  // After that the lease has ended it, unless the server is slower than the time-out.
  const until = networkNow() + request.lease + pool.limits.timeout
  const left = () => ({ patience: until - networkNow(), isBackground: true })
  try {
    if (request.grace !== undefined) {
      await pool.request([['LOCK.SESSION', id, 'END']], left())
      return
    }
    // A grant that is bound to a connection ended with it.
    if (request.session) return
    const isNamed = request.owner !== undefined
    const again = request.acquire(owner, longestLease(core, request, owner), 0, id)
    const releases = (tokens?: number[]) =>
      request.names.map((name, at) => request.release(name, owner, !isNamed, tokens?.[at], core.nextId()))
    if (!isNamed) {
      // One step for the server: a copy that begins anew is granted a free lock, which nobody else may see.
      await pool.request([['MULTI'], again, ...releases(), ['EXEC']], left())
      return
    }
    const [reply] = await pool.request([again], left())
    // NOTHELD: it was granted, and has ended.
    const tokens = reply instanceof ServerError ? undefined : request.tokens(reply)
    if (tokens) await pool.request(releases(tokens), left())
  } catch {
    // The server was out of reach for longer than the lease, or close() was called. The lease ends the grant.
    if (request.owner !== undefined) for (const name of request.names) holds.markSurplus(name, owner)
  }
}
