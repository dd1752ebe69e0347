/** The server's clock, which a test moves, and fake timers that move along. */
import { networkTurn } from '../time.js'
import { type Control, pairs } from './control.js'

/** What `follow` uses of the fake timers of Vitest (`vi`), Jest (`jest`) or node:test (`mock.timers`). */
export interface FakeTimers {
  advanceTimersByTimeAsync?: (ms: number) => Promise<unknown>
  advanceTimersByTime?: (ms: number) => unknown
  tick?: (ms: number) => unknown
}

/** Fewest and most steps of an advance with fake timers: what a timer does in one step reaches the server before the next. */
const STEPS: readonly [number, number] = [100, 5000]
/** Steps in the shortest lease, so that its renewals are in time. */
const STEPS_A_LEASE = 10

/** What the clock needs to know of the server's grants. */
export interface Watched {
  /** Runs after the clock has moved. */
  moved(): Promise<void>
  /** The shortest lease of the grants, in milliseconds; `Infinity` without any. */
  shortestLease(): number
}

export class Clock {
  readonly #control: Control
  readonly #watched: Watched
  #timers: FakeTimers | undefined
  #original: FakeTimers['advanceTimersByTimeAsync']

  /** @internal */
  constructor(control: Control, watched: Watched) {
    this.#control = control
    this.#watched = watched
  }

  /** Stops the clock. */
  async freeze(): Promise<void> {
    await this.#control.call('CLOCK', 'FREEZE')
  }

  /** Lets the clock run on. */
  async resume(): Promise<void> {
    await this.#control.call('CLOCK', 'RESUME')
  }

  /**
   * Moves the clock forward, and the fake timers that it follows. When the promise resolves, all that is due within these
   * milliseconds has happened, replies to waiters are sent, and grants of `server.locks()` that ended know that they are lost.
   */
  async advance(ms: number): Promise<void> {
    if (this.#timers) await this.#advanceBoth(ms)
    else await this.#control.call('CLOCK', 'ADVANCE', ms)
    await this.#watched.moved()
  }

  /** Goes to a time, as unix milliseconds or a Date: forward as `advance` does; back, the wall clock alone is stepped. */
  async set(time: number | Date): Promise<void> {
    await this.#control.call('CLOCK', 'SET', Number(time))
    await this.#watched.moved()
  }

  /** Steps the wall clock alone, forward or back. Leases and TTLs do not change. */
  async skew(ms: number): Promise<void> {
    await this.#control.call('CLOCK', 'SKEW', ms)
  }

  /** The clock, and the number of clients that wait. */
  async info(): Promise<{ frozen: number; 'unix-ms': number; 'skew-ms': number; 'blocked-clients': number }> {
    return pairs(await this.#control.call('CLOCK', 'INFO')) as Awaited<ReturnType<Clock['info']>>
  }

  /**
   * Ties the server's clock to fake timers, until the end of the test: it stops at the fake Date, and from then on
   * `server.clock.advance(ms)` moves both. So does `advanceTimersByTimeAsync(ms)` of `vi` and `jest`. (`advanceTimersByTime` and
   * `tick` cannot wait for the server, and move the timers alone.)
   */
  async follow(timers: FakeTimers): Promise<void> {
    if (!timers.advanceTimersByTimeAsync && !timers.advanceTimersByTime && !timers.tick) {
      throw new TypeError("clock.follow takes vi, jest, or node:test's mock.timers, with fake timers enabled")
    }
    this.unfollow()
    await this.freeze()
    await this.#control.call('CLOCK', 'SET', Date.now())
    this.#timers = timers
    if (timers.advanceTimersByTimeAsync) {
      const original = timers.advanceTimersByTimeAsync
      this.#original = original
      timers.advanceTimersByTimeAsync = async (ms) => {
        await this.advance(ms)
        return timers
      }
    }
  }

  /** Ends `follow`. The clock stays stopped. */
  unfollow(): void {
    if (this.#timers && this.#original) this.#timers.advanceTimersByTimeAsync = this.#original
    this.#timers = undefined
    this.#original = undefined
  }

  async #advanceBoth(ms: number): Promise<void> {
    const wanted = Math.max(STEPS[0], Math.ceil((ms * STEPS_A_LEASE) / this.#watched.shortestLease()))
    const steps = Math.max(1, Math.min(wanted, STEPS[1], Math.floor(ms)))
    let done = 0
    for (let step = 1; step <= steps; step++) {
      const next = Math.round((ms * step) / steps)
      const by = next - done
      done = next
      if (by === 0) continue
      await this.#control.call('CLOCK', 'ADVANCE', by)
      await networkTurn()
      await this.#moveTimers(by)
      await networkTurn()
    }
  }

  async #moveTimers(ms: number): Promise<void> {
    const timers = this.#timers as FakeTimers
    if (this.#original) await this.#original.call(timers, ms)
    else if (timers.advanceTimersByTime) timers.advanceTimersByTime(ms)
    else timers.tick?.(ms)
  }
}
