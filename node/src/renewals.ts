/**
 * Renews all grants of one `Locks` by one timer, in batches, and sees leases end.
 *
 * A grant is renewed at a third of its lease. If that fails, it is tried again until the lease, less a margin, ends by this process's
 * monotonic clock, counted from before the last request that was answered: the grant is lost then, whatever the server has.
 */
import type { Command, Link } from './driver/link.js'
import { ConnectionError, NotHeldError, ServerError, fromReply } from './errors.js'
import type { Ear } from './losses.js'
import type { Pool } from './pool.js'
import { type Timer, leaseNow, leaseTimer, networkNow } from './time.js'

/** A grant, as renewals see it. Times are milliseconds of `leaseNow`. */
export interface Renewable {
  readonly lease: number
  readonly tokens: readonly number[]
  /** The connection on whose channel the server tells the loss. */
  readonly ear: Ear | undefined
  /** When this process counts as no holder any more: a margin before the lease ends, or with the grace of its session. */
  deadline: number
  /** When the grant is renewed next; `Infinity` for never. */
  nextRenewal: number
  isRenewing: boolean
  /** Its position in the list of `Renewals`; -1 if it is not there. Only `Renewals` sets it. */
  position: number
  /** One command a name; their replies are the milliseconds that are left. */
  renewalCommands(): Command[]
  /** Whether it is bound to a connection of its own, on which it renews itself by `renewBound`. */
  readonly isBound: boolean
  renewBound(): Promise<void>
  /** The server has answered with the milliseconds that are left, at a request of that time. */
  answered(sent: number, left: number): void
  /** Asks the server whether it is still held, and why it is not. */
  confirm(): Promise<void>
  lose(error: NotHeldError): void
  /** Records the loss of a grant whose deadline has passed. */
  loseEnded(): void
  leaseEnded(why: string): NotHeldError
}

/** Number of grants in one batch. */
const BATCH = 500

export class Renewals {
  /** In no order. A list with positions costs less than a Set. */
  readonly #grants: Renewable[] = []
  #pool: Pool
  #timer: Timer | undefined
  /** When the timer is due. */
  #due = Infinity

  /** Number of grants whose loss somebody awaits. */
  #awaited = 0

  constructor(pool: Pool) {
    this.#pool = pool
  }

  /** Somebody awaits the loss of one more grant, or of one less. While anybody does, the timer keeps the process alive. */
  await(more: 1 | -1): void {
    this.#awaited += more
    this.#timer?.keepProcess(this.#awaited > 0)
  }

  /** A copy of the list. */
  get grants(): Renewable[] {
    return [...this.#grants]
  }

  add(grant: Renewable): void {
    grant.position = this.#grants.push(grant) - 1
    this.wakeBy(Math.min(grant.nextRenewal, grant.deadline))
  }

  remove(grant: Renewable): void {
    // The timer stays: it is cheaper to find nothing to do once than to set it again with each grant.
    const { position } = grant
    if (position < 0) return
    grant.position = -1
    const last = this.#grants.pop() as Renewable
    if (last === grant) return
    this.#grants[position] = last
    last.position = position
  }

  stop(): void {
    this.#timer?.cancel()
    this.#timer = undefined
    this.#due = Infinity
    for (const grant of this.grants) this.remove(grant)
  }

  /** Looks at the grants at this time, if not before. */
  wakeBy(time: number): void {
    if (time >= this.#due) return
    this.#timer?.cancel()
    this.#due = time
    this.#timer = leaseTimer(time - leaseNow(), () => {
      this.#timer = undefined
      this.#due = Infinity
      this.#tick()
    }, this.#awaited > 0)
  }

  #tick(): void {
    const now = leaseNow()
    const due: Renewable[] = []
    let next = Infinity
    for (const grant of this.grants) {
      if (now >= grant.deadline) {
        grant.loseEnded()
        continue
      }
      // Grants that are due shortly after come along, so that many of them do not make many batches.
      if (!grant.isRenewing && grant.nextRenewal <= now + grant.lease / 30) due.push(grant)
      else next = Math.min(next, grant.isRenewing ? grant.deadline : Math.min(grant.nextRenewal, grant.deadline))
    }
    this.#renewAll(due)
    for (const grant of due) next = Math.min(next, grant.deadline)
    this.wakeBy(next)
  }

  /** Renews grants now, since they may have ended: the refusal says why. */
  confirm(isConcerned: (grant: Renewable) => boolean): void {
    this.#renewAll(this.#grants.filter(isConcerned))
  }

  #renewAll(grants: Renewable[]): void {
    const free = grants.filter((grant) => !grant.isBound)
    for (let at = 0; at < free.length; at += BATCH) void this.#renew(free.slice(at, at + BATCH))
    for (const grant of grants) {
      if (!grant.isBound || grant.isRenewing) continue
      grant.isRenewing = true
      void grant.renewBound().finally(() => {
        grant.isRenewing = false
        if (grant.position >= 0) this.wakeBy(Math.min(grant.nextRenewal, grant.deadline))
      })
    }
  }

  /** Renews grants now. Failures are seen at the next attempt, or at the end of the lease. */
  async #renew(grants: Renewable[]): Promise<void> {
    const sent = leaseNow()
    let first = Infinity
    for (const grant of grants) {
      grant.isRenewing = true
      first = Math.min(first, grant.deadline)
    }
    // A node that hangs must leave time to ask another one.
    const timeout = this.#pool.patienceFor(first - sent)
    const batches = grants.map((grant) => grant.renewalCommands())
    let replies: unknown[] | undefined
    let link: Link | undefined
    try {
      link = await this.#pool.lease(false, networkNow() + timeout)
      replies = await link.callMany(batches.flat(), timeout)
      const refused = replies.some((reply) => reply instanceof ServerError && reply.isOfNode)
      if (refused) this.#pool.leaderIsGone(link)
      else this.#pool.giveBack(link)
    } catch (error) {
      // The next attempt begins with another node: this one may be cut off from the others.
      if (error instanceof ConnectionError && link) this.#pool.isSilent(link)
      if (!(error instanceof ConnectionError) && !this.#pool.isClosed) queueMicrotask(() => { throw error })
    }
    let at = 0
    grants.forEach((grant, number) => {
      const count = (batches[number] as Command[]).length
      grant.isRenewing = false
      if (grant.position >= 0) settle(grant, sent, replies?.slice(at, at + count))
      at += count
      if (grant.position >= 0) this.wakeBy(Math.min(grant.nextRenewal, grant.deadline))
    })
  }
}

/** A twentieth of the lease, from 5 ms to 1 s: several attempts fit into the rest of it. */
function retryAfter(grant: Renewable): number {
  return Math.min(Math.max(grant.lease / 20, 5), 1000)
}

/** The server's reason for a name that it knows nothing of. It remembers the last grants of each name. */
const NEVER_HELD = 'never held'
/** Why a grant of this process can be unknown. */
export const UNKNOWN = 'the server does not know the grant: it has restarted without its data, or has lost its last writes'

/** The server's refusal, as the holder of a grant is to read it. */
export function asGrantOf(grant: Renewable, error: NotHeldError): NotHeldError {
  if (error.cause !== NEVER_HELD) return error
  return grant.leaseEnded(UNKNOWN)
}

/** Takes the replies to a grant's renewals over; undefined if there are none. */
export function settle(grant: Renewable, sent: number, replies: unknown[] | undefined): void {
  const now = leaseNow()
  const retry = now + retryAfter(grant)
  const isRenewed = grant.nextRenewal !== Infinity
  if (replies === undefined) {
    if (isRenewed) grant.nextRenewal = retry
    return
  }
  let left = Infinity
  for (const reply of replies) {
    if (reply instanceof ServerError) {
      const error = fromReply(reply)
      if (error instanceof NotHeldError) return grant.lose(asGrantOf(grant, error))
      // The next attempt may get a clearer answer; the grant is held until its lease ends.
      if (isRenewed) grant.nextRenewal = retry
      return
    }
    left = Math.min(left, Number(reply))
  }
  // The holder has stopped by then.
  if (now >= grant.deadline) return grant.loseEnded()
  grant.answered(sent, left)
  if (isRenewed) grant.nextRenewal = Math.max(now + Math.min(left, grant.lease) / 3, Math.min(retry, grant.deadline))
}
