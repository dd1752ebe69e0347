/**
 * Locks of a Portcullis server for JavaScript: with a queue, fencing tokens, sessions and renewal, over ioredis or node-redis.
 *
 * ```js
 * const locks = connect('redis://127.0.0.1:6379')
 * await locks.withLock('order:42', { wait: 5000 }, async (grant, signal) => {
 *   await write({ token: grant.token, signal })
 * })
 * ```
 *
 * It is not a Redis client, and needs one of the two. All times are milliseconds.
 */
import program from './program.cjs'

export type { DriverName } from './driver/driver.js'
export {
  DeadlockError,
  LockError,
  NoLeaderError,
  NotAcquiredError,
  NotHeldError,
  NotPortcullisError,
  StaleTokenError,
  UnreachableError,
} from './errors.js'
export type { Holder, Wait } from './errors.js'
export type { Grant } from './grant.js'
export { connect } from './locks.js'
export type { ConnectOptions, Locks, Work } from './locks.js'
export type { Guard, Latch, Semaphore, ThrottleOptions, Throttled } from './parts.js'
export type { LastEnd, LockInfo, Waiter } from './replies.js'
export type { AcquireOptions, AllOptions, LockOptions, OwnerOptions, PermitOptions } from './request.js'

/**
 * The path of the program `portcullis`: what the environment variable PORTCULLIS names, or the program in this platform's package, or
 * the one on the PATH.
 *
 * @throws Error if there is none; it says how to get it.
 */
export const programPath: () => string = program.programPath
