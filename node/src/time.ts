/**
 * Two kinds of time, which differ only in tests with fake timers.
 *
 * Connections use the real timers of the time when this module was loaded: a fake clock does not make a network faster. Leases use
 * the timers of the moment, so that a test that fakes them moves renewals, too.
 */
import { performance } from 'node:perf_hooks'
import timers from 'node:timers'

// Copies: fake timers may replace the functions of the modules, too.
const { setTimeout: realSetTimeout, clearTimeout: realClearTimeout, setImmediate: realSetImmediate } = timers
const realNow = performance.now.bind(performance)

/** A timer that can be cancelled, whichever clock made it. */
export interface Timer {
  cancel(): void
  /** Whether it keeps the process alive. */
  keepProcess(keep: boolean): void
}

function start(set: typeof setTimeout, clear: typeof clearTimeout, ms: number, work: () => void, keepsProcess: boolean): Timer {
  const id = set(work, Math.min(Math.max(ms, 0), 2 ** 31 - 1))
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

/** Milliseconds of the monotonic clock that a test may fake. */
export function leaseNow(): number {
  return globalThis.performance.now()
}

/** Runs `work` after so many milliseconds, which a test may fake. */
export function leaseTimer(ms: number, work: () => void, keepsProcess: boolean): Timer {
  return start(globalThis.setTimeout, globalThis.clearTimeout, ms, work, keepsProcess)
}

/** Resolves after so many real milliseconds, or at once when the signal is aborted. Keeps the process alive. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve()
    const done = () => {
      timer.cancel()
      signal?.removeEventListener('abort', done)
      resolve()
    }
    const timer = start(realSetTimeout, realClearTimeout, ms, done, true)
    signal?.addEventListener('abort', done, { once: true })
  })
}

/** Resolves after the next turn of the real event loop, in which arrived replies are read. */
export function networkTurn(): Promise<void> {
  return new Promise((resolve) => realSetImmediate(resolve))
}
