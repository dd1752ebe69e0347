/**
 * Two kinds of time, which differ only in tests with fake timers.
 *
 * Connections use the real timers of the time when this module was loaded: a fake clock does not make a network faster. Leases use
 * the timers of the moment, so that a test that fakes them moves renewals, too.
 */
import { performance } from 'node:perf_hooks'
import timers from 'node:timers'

// Copies: fake timers may replace the functions of the modules, too.
const { setTimeout: realSetTimeout, clearTimeout: realClearTimeout, setImmediate: realSetImmediate, setInterval: realSetInterval, clearInterval: realClearInterval } = timers
const realNow = performance.now.bind(performance)

/** The longest time of a timer; a longer one would fire at once. */
const LONGEST_MS = 2 ** 31 - 1

/** A timer that can be cancelled, whichever clock made it. */
export interface Timer {
  cancel(): void
  /** Whether it keeps the process alive. */
  keepProcess(keep: boolean): void
}

function start(set: typeof setTimeout, clear: typeof clearTimeout, ms: number, work: () => void, keepsProcess: boolean): Timer {
  const id = set(work, Math.min(Math.max(ms, 0), LONGEST_MS))
  // Fake timers of some libraries are numbers.
  const keepProcess = (keep: boolean) => (id as { ref?: () => void; unref?: () => void })[keep ? 'ref' : 'unref']?.()
  if (!keepsProcess) keepProcess(false)
  return { cancel: () => clear(id), keepProcess }
}

/** Milliseconds of the monotonic clock; never fake. */
export const networkNow: () => number = realNow

/** Runs `work` after so many real milliseconds. Does not keep the process alive. */
export function networkTimer(ms: number, work: () => void): Timer {
  return start(realSetTimeout, realClearTimeout, ms, work, false)
}

/** How far fake timers are ahead of the monotonic clock: those of node:test move timers, and not `performance.now`. */
let aheadMs = 0
/** A real timer fires up to a millisecond early. */
const EARLY_MS = 5

/** Milliseconds of the monotonic clock that a test may fake. */
export function leaseNow(): number {
  return globalThis.performance.now() + aheadMs
}

/**
 * How much of so long a lease a holder counts on, in milliseconds. The rest is its margin, which it needs to stop, and because its clock may be
 * slower than the server's: a twentieth, but no more than a second and a thousandth of the lease.
 */
export function certain(lease: number): number {
  return lease - Math.min(lease / 20, 1000 + lease / 1000)
}

/** Runs `work` after so many milliseconds, which a test may fake. */
export function leaseTimer(ms: number, work: () => void, keepsProcess: boolean): Timer {
  const due = leaseNow() + Math.min(ms, LONGEST_MS)
  const fire = () => {
    const earlyMs = due - leaseNow()
    if (earlyMs > EARLY_MS) aheadMs += earlyMs
    work()
  }
  return start(globalThis.setTimeout, globalThis.clearTimeout, ms, fire, keepsProcess)
}

/** Resolves after so many real milliseconds, or at once when the signal is aborted. */
export function pause(ms: number, signal?: AbortSignal, keepsProcess = true): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve()
    const done = () => {
      timer.cancel()
      signal?.removeEventListener('abort', done)
      resolve()
    }
    const timer = start(realSetTimeout, realClearTimeout, ms, done, keepsProcess)
    signal?.addEventListener('abort', done, { once: true })
  })
}

/** Keeps the process alive until the work is done. */
export async function keepProcessDuring<T>(work: Promise<T>): Promise<T> {
  const id = realSetInterval(() => {}, 60_000)
  try {
    return await work
  } finally {
    realClearInterval(id)
  }
}

/** Resolves after the next turn of the real event loop, in which arrived replies are read. */
export function networkTurn(): Promise<void> {
  return new Promise((resolve) => realSetImmediate(resolve))
}
