/**
 * Hears at once when the server ends a grant.
 *
 * The client libraries do not pass on the server's push `lock-lost`. The server also publishes it, on a channel for each connection that has
 * acquired. One connection more subscribes to these channels:
 *
 * ```text
 *   granted on a connection ─▶ follow ─▶ SUBSCRIBE its channel ─▶ "<token> <reason> <name>" ─▶ the grant is renewed at once
 *   released or lost        ─▶ leave  ─▶ UNSUBSCRIBE, when the connection has closed, too
 * ```
 *
 * The refusal of that renewal tells why the grant has ended. A grant that does not renew itself is only looked at. So a forged message ends
 * nothing. While this connection is broken, or if the user may not subscribe, the next renewal sees the loss.
 */
import type { Link } from './driver/link.js'
import { ServerError } from './errors.js'
import { type Timer, networkTimer, networkTurn } from './time.js'

const CHANNEL = '__portcullis__:lock-lost:'
/** First and longest pause before the connection is opened again, in milliseconds. */
const PAUSE_MS: readonly [number, number] = [100, 5000]

/** A connection that has acquired grants. */
export interface Ear {
  readonly link: Link
  readonly channel: string
  /** Number of grants that live. */
  grants: number
}

export class Losses {
  readonly #ears = new Map<Link, Ear>()
  readonly #timeout: number
  readonly #dial: () => Promise<Link>
  readonly #onLost: (tokens: Set<number>) => void
  readonly #onHeard: (ears: Set<Ear>) => void
  /** The connection that subscribes, or is being opened. */
  #link: Link | 'opening' | undefined
  #pause = PAUSE_MS[0]
  #timer: Timer | undefined
  /** Tokens of messages that came in this turn of the event loop. */
  #heard = new Set<number>()
  #isEnded = false

  /**
   * @param timeout Milliseconds that the server has to confirm a subscription.
   * @param onLost Called with the tokens whose grants have ended.
   * @param onHeard Called when losses are heard from now on; grants of these connections may have ended before.
   */
  constructor(timeout: number, dial: () => Promise<Link>, onLost: (tokens: Set<number>) => void, onHeard: (ears: Set<Ear>) => void) {
    this.#timeout = timeout
    this.#dial = dial
    this.#onLost = onLost
    this.#onHeard = onHeard
  }

  /** A grant was acquired on this connection. Undefined if its number on the server is not known. */
  follow(link: Link): Ear | undefined {
    let ear = this.#ears.get(link)
    if (!ear) {
      if (link.number === undefined || this.#isEnded) return undefined
      ear = { link, channel: CHANNEL + link.number, grants: 0 }
      this.#ears.set(link, ear)
      link.onClosed(() => this.#drop(ear as Ear))
      if (this.#link !== undefined && this.#link !== 'opening') this.#subscribe(this.#link, [ear])
    }
    if (this.#link === undefined && this.#timer === undefined && !this.#isEnded) this.#open()
    ear.grants++
    return ear
  }

  /** The grant is released or lost. */
  leave(ear: Ear): void {
    ear.grants--
    if (ear.link.isClosed) this.#drop(ear)
  }

  /** The connection leads to a node that does not lead any more. */
  leaderIsGone(): void {
    if (this.#link !== undefined && this.#link !== 'opening') this.#link.destroy('its node does not lead')
  }

  /** Ends everything. */
  close(): void {
    this.#isEnded = true
    this.#timer?.cancel()
    if (this.#link !== undefined && this.#link !== 'opening') this.#link.destroy('close() was called')
    this.#ears.clear()
  }

  /** Forgets a connection that has closed, once its last grant has ended. */
  #drop(ear: Ear): void {
    // `follow` may be about to count its first grant.
    void Promise.resolve().then(() => {
      if (ear.grants > 0 || !this.#ears.delete(ear.link)) return
      // Connections of different servers, or of one before and after its restart, may have the same number.
      const isShared = [...this.#ears.values()].some((other) => other.channel === ear.channel)
      if (!isShared && this.#link !== undefined && this.#link !== 'opening') void this.#link.unsubscribe([ear.channel]).catch(() => {})
    })
  }

  #open(): void {
    this.#link = 'opening'
    this.#dial().then(
      (link) => {
        if (this.#isEnded) return link.destroy()
        link.keepProcess(false)
        this.#link = link
        link.onClosed(() => this.#closed())
        this.#subscribe(link, [...this.#ears.values()])
      },
      () => this.#closed(),
    )
  }

  /** Opens the connection again after a while, if there are grants to hear of. */
  #closed(): void {
    this.#link = undefined
    if (this.#isEnded) return
    this.#timer = networkTimer(this.#pause, () => {
      this.#timer = undefined
      for (const ear of this.#ears.values()) if (ear.grants > 0) return this.#open()
    })
    this.#pause = Math.min(this.#pause * 2, PAUSE_MS[1])
  }

  #subscribe(link: Link, ears: Ear[]): void {
    if (ears.length === 0) return
    const channels = ears.map((ear) => ear.channel)
    const late = networkTimer(this.#timeout, () => link.destroy('no reply within the time-out'))
    link.subscribe(channels, (message) => this.#hear(message)).then(
      () => {
        this.#pause = PAUSE_MS[0]
        const living = ears.filter((ear) => ear.grants > 0)
        if (living.length > 0 && !this.#isEnded) this.#onHeard(new Set(living))
      },
      (error: unknown) => {
        if (!(error instanceof ServerError)) return
        if (error.isOfNode) link.destroy('its node does not lead')
        // The user may not subscribe to the channel.
        else this.close()
      },
    ).finally(() => late.cancel())
  }

  #hear(message: string): void {
    if (this.#heard.size === 0) {
      void networkTurn().then(() => {
        const tokens = this.#heard
        this.#heard = new Set()
        this.#onLost(tokens)
      })
    }
    this.#heard.add(Number.parseInt(message, 10))
  }
}
