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
  /** Undefined if the connection's number on the server is not known. */
  readonly channel: string | undefined
  /** Number of grants that live. */
  grants: number
}

export class Losses {
  readonly #ears = new Map<Link, Ear>()
  readonly #timeout: number
  readonly #dial: () => Promise<Link>
  readonly #onLost: (tokens: Set<number>) => void
  readonly #onHeard: (ears: Set<Ear>) => void
  readonly #onClosed: () => void
  /** The connection that subscribes, or is being opened. */
  #link: Link | 'opening' | undefined
  #pause = PAUSE_MS[0]
  #timer: Timer | undefined
  /** Tokens of messages that came in this turn of the event loop. */
  #heard = new Set<number>()
  #isEnded = false
  /** Whether the user may not subscribe. */
  #isRefused = false

  /**
   * @param timeout Milliseconds that the server has to confirm a subscription.
   * @param onLost Called with the tokens whose grants have ended.
   * @param onHeard Called when losses are heard from now on; grants of these connections may have ended before.
   * @param onClosed Called when a connection that has acquired grants closes.
   */
  constructor(
    timeout: number,
    dial: () => Promise<Link>,
    onLost: (tokens: Set<number>) => void,
    onHeard: (ears: Set<Ear>) => void,
    onClosed: () => void,
  ) {
    this.#timeout = timeout
    this.#dial = dial
    this.#onLost = onLost
    this.#onHeard = onHeard
    this.#onClosed = onClosed
  }

  /** This connection is a grant's: it acquired it, or took it over. */
  follow(link: Link): Ear {
    let ear = this.#ears.get(link)
    if (!ear) {
      ear = { link, channel: link.number === undefined ? undefined : CHANNEL + link.number, grants: 0 }
      this.#ears.set(link, ear)
      link.onClosed(() => {
        this.#drop(ear as Ear)
        if (!this.#isEnded) this.#onClosed()
      })
      if (this.#link !== undefined && this.#link !== 'opening') this.#subscribe(this.#link, [ear])
    }
    if (this.#link === undefined && this.#timer === undefined && !this.#isEnded && !this.#isRefused) this.#open()
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
      if (ear.channel !== undefined && !isShared && this.#link !== undefined && this.#link !== 'opening') void this.#link.unsubscribe([ear.channel]).catch(() => {})
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
    if (this.#isEnded || this.#isRefused) return
    this.#timer = networkTimer(this.#pause, () => {
      this.#timer = undefined
      for (const ear of this.#ears.values()) if (ear.grants > 0) return this.#open()
    })
    this.#pause = Math.min(this.#pause * 2, PAUSE_MS[1])
  }

  #subscribe(link: Link, ears: Ear[]): void {
    const channels = ears.flatMap((ear) => ear.channel ?? [])
    if (channels.length === 0) return
    const late = networkTimer(this.#timeout, () => link.destroy('no reply within the time-out'))
    link.subscribe(channels, (message) => this.#hear(message)).then(
      () => {
        this.#pause = PAUSE_MS[0]
        const living = ears.filter((ear) => ear.grants > 0)
        if (living.length > 0 && !this.#isEnded) this.#onHeard(new Set(living))
      },
      (error: unknown) => {
        if (!(error instanceof ServerError)) return
        if (!error.isOfNode) this.#isRefused = true
        link.destroy(error.message)
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
