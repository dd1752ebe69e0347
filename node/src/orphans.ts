/**
 * Takes grants over whose connection has closed, by another connection of this process.
 *
 * The server tells a loss to the connection that acquired the grant, and shows the holder of one that has closed as gone. A connection closes
 * when a wait on it is aborted, or when the server restarts.
 *
 * ```text
 *   connection closed ─▶ CHECK its grants ─┬─▶ held: the request is repeated, which makes this connection the grant's
 *           ▲                              └─▶ not held: renewed, since the refusal says why
 *           └── no connection, or it broke
 * ```
 *
 * The check comes first, on the same connection: a server that has lost the grant would take the repeated request for a new one.
 */
import type { Command, Link } from './driver/link.js'
import { ConnectionError, ServerError } from './errors.js'
import type { Grant } from './grant.js'
import type { Ear } from './losses.js'
import type { Pool } from './pool.js'
import { type Renewals, settle } from './renewals.js'
import { type Timer, leaseNow, networkTimer } from './time.js'

/** Pause before connections that close together are looked at, and first and longest pause before another attempt, in milliseconds. */
const PAUSE_MS: readonly [number, number, number] = [10, 50, 500]
/** Number of grants in one batch. */
const BATCH = 500

export class Orphans {
  readonly #pool: Pool
  readonly #renewals: Renewals
  /** Grants that stay with a connection that has closed, because nothing can take them over. */
  readonly #left = new WeakMap<Grant, Ear>()
  #timer: Timer | undefined
  #isRunning = false
  #pause = PAUSE_MS[1]

  constructor(pool: Pool, renewals: Renewals) {
    this.#pool = pool
    this.#renewals = renewals
  }

  /** A connection has closed on which grants were acquired. */
  closed(): void {
    if (!this.#isRunning) this.#runAfter(PAUSE_MS[0])
  }

  stop(): void {
    this.#timer?.cancel()
  }

  #runAfter(ms: number): void {
    this.#timer ??= networkTimer(ms, () => {
      this.#timer = undefined
      void this.#run()
    })
  }

  #find(): Grant[] {
    return (this.#renewals.grants as Grant[]).filter((grant) => grant.isOrphan && this.#left.get(grant) !== grant.ear)
  }

  async #run(): Promise<void> {
    this.#isRunning = true
    try {
      for (let grants = this.#find(); grants.length > 0; grants = this.#find()) {
        const link = await this.#pool.lease()
        for (let at = 0; at < grants.length; at += BATCH) await this.#takeOver(grants.slice(at, at + BATCH), link)
        this.#pool.giveBack(link)
      }
      this.#pause = PAUSE_MS[1]
    } catch (error) {
      if (this.#pool.isClosed) return
      if (!(error instanceof ConnectionError)) throw error
      this.#runAfter(this.#pause)
      this.#pause = Math.min(this.#pause * 2, PAUSE_MS[2])
    } finally {
      this.#isRunning = false
    }
  }

  /** @throws ConnectionError */
  async #takeOver(grants: Grant[], link: Link): Promise<void> {
    const checks = await this.#send(link, grants, (grant) => grant.checkCommands())
    const living = grants.filter((grant) => grant.isOrphan)
    const isHeld = (grant: Grant) => grant.mayBeUpgraded || (checks.get(grant) as unknown[]).every((reply) => Number(reply) === 1)
    const held = new Set(living.filter(isHeld))
    const sent = leaseNow()
    const replies = await this.#send(link, living, (grant) => (held.has(grant) ? grant.takeOverCommands() : grant.renewalCommands()))
    for (const grant of living) {
      if (grant.ear) this.#left.set(grant, grant.ear)
      const own = replies.get(grant) as unknown[]
      if (!held.has(grant)) settle(grant, sent, own)
      else if (own.length > 0) grant.takenOver(own, sent, link)
    }
  }

  /** The replies to the commands of each grant. @throws ConnectionError */
  async #send(link: Link, grants: Grant[], commandsOf: (grant: Grant) => Command[]): Promise<Map<Grant, unknown[]>> {
    const commands = grants.map(commandsOf)
    const all = commands.flat()
    const replies = all.length > 0 ? await link.callMany(all, this.#pool.limits.timeout) : []
    const refused = replies.find((reply) => reply instanceof ServerError && reply.isOfNode) as ServerError | undefined
    if (refused) {
      this.#pool.leaderIsGone(link)
      throw new ConnectionError(refused.message, false, true)
    }
    let at = 0
    return new Map(grants.map((grant, number) => [grant, replies.slice(at, (at += (commands[number] as Command[]).length))]))
  }
}
