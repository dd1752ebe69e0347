/** What the parts of one `Locks` share. */
import { randomBytes } from 'node:crypto'
import { Holds } from './holds.js'
import { Losses } from './losses.js'
import { Orphans } from './orphans.js'
import type { Pool } from './pool.js'
import { type Renewable, Renewals } from './renewals.js'

export class Core {
  readonly pool: Pool
  readonly holds = new Holds()
  readonly renewals: Renewals
  readonly losses: Losses
  readonly orphans: Orphans
  /** Unique to this process and object; owners and request ids begin with it. */
  readonly #prefix = randomBytes(12).toString('base64url')
  #count = 0
  /** Work that goes on after its caller is gone. */
  readonly #background = new Set<Promise<unknown>>()

  constructor(pool: Pool) {
    this.pool = pool
    this.renewals = new Renewals(pool)
    this.losses = new Losses(
      pool.limits.timeout,
      () => pool.dialApart(),
      (tokens) => this.#confirm((grant) => grant.tokens.some((token) => tokens.has(token))),
      (ears) => this.#confirm((grant) => grant.ear !== undefined && ears.has(grant.ear)),
      () => this.orphans.closed(),
    )
    this.orphans = new Orphans(pool, this.renewals)
    pool.onLeaderGone = () => this.losses.leaderIsGone()
  }

  /** Asks the server at once about grants that may have ended. */
  #confirm(isConcerned: (grant: Renewable) => boolean): void {
    this.renewals.confirm((grant) => grant.nextRenewal !== Infinity && isConcerned(grant))
    // A look does not restart the lease, as a renewal would.
    for (const grant of this.renewals.grants) {
      if (grant.nextRenewal === Infinity && isConcerned(grant)) this.background(grant.confirm().catch(() => {}))
    }
  }

  /** End the attempts that are under way. */
  readonly #aborts = new Set<() => void>()
  #closing = false

  /** Whether close() was called. */
  get isClosing(): boolean {
    return this.#closing
  }

  /** Registers how to end an attempt when close() is called. */
  addAbort(abort: () => void): void {
    this.#aborts.add(abort)
  }

  removeAbort(abort: () => void): void {
    this.#aborts.delete(abort)
  }

  /** Ends all attempts, and refuses new ones. */
  abortAll(): void {
    this.#closing = true
    for (const abort of this.#aborts) abort()
  }

  /** A name that nobody else uses, for an owner, a request or a session. */
  nextId(): string {
    return `${this.#prefix}:${++this.#count}`
  }

  /** Lets work go on without a caller. It must not fail: its outcome is nobody's. */
  background(work: Promise<unknown>): void {
    this.#background.add(work)
    void work.finally(() => this.#background.delete(work))
  }

  /** Resolves when no work goes on without a caller. */
  async settled(): Promise<void> {
    while (this.#background.size > 0) await Promise.allSettled([...this.#background])
  }
}
