/** What to acquire, for whom and for how long; and the commands for it. Times are milliseconds. */
import type { Command } from './driver/link.js'
import { flag, known, lockName, milliseconds, signalOf, text, whole } from './options.js'

/** What all kinds of acquisitions have in common. */
export interface AcquireOptions {
  /** How long the lock is held without renewal, in whole milliseconds from 1 on. 30,000 unless given. */
  lease?: number
  /** How long to wait in the queue, in milliseconds: 0 or nothing asks once, `Infinity` waits without limit. */
  wait?: number
  /**
   * Binds the grant to a connection of its own. With `true` it ends with the connection, at once. With a grace, in milliseconds, it
   * outlives a connection that breaks by so much, and the grant reconnects.
   */
  session?: boolean | { grace: number }
  /** Whether the lease is renewed by itself, at each third of it. True unless given. */
  renew?: boolean
  /** Ends the wait. The promise is then rejected with the signal's reason, and nothing stays in the queue or held. */
  signal?: AbortSignal
}

/** Options of a lock, and of several. */
export interface OwnerOptions {
  /**
   * The owner, unique to one thread of work. Without one each acquisition has an owner of its own. The same owner acquires again at
   * once (reentrancy), and the server sees deadlocks of owners who hold several locks.
   */
  owner?: string
}

/** Options of a lock. */
export interface LockOptions extends AcquireOptions, OwnerOptions {
  /** Shares the lock with others who ask for it shared. */
  shared?: boolean
  /** How long nobody gets the lock when the grant ends other than by a release, in milliseconds: late writes arrive meanwhile. */
  delay?: number
  /** The longest time that the lock may be held, with all renewals, in milliseconds. */
  maxHold?: number
}

/** Options of several locks at once. */
export interface AllOptions extends AcquireOptions, OwnerOptions {}

/** Options of permits. */
export interface PermitOptions extends AcquireOptions {
  /** Number of permits to acquire together. 1 unless given. */
  permits?: number
}

export type Kind = 'lock' | 'all' | 'semaphore'

const DEFAULT_LEASE_MS = 30_000

const COMMON = ['lease', 'wait', 'session', 'renew', 'signal'] as const
/** What each kind is called in messages, and its options. */
const KINDS: Record<Kind, readonly [string, ReadonlyArray<keyof (LockOptions & PermitOptions)>]> = {
  lock: ['a lock', [...COMMON, 'owner', 'shared', 'delay', 'maxHold']],
  all: ['several locks', [...COMMON, 'owner']],
  semaphore: ['a semaphore', [...COMMON, 'permits']],
}

function graceOf(session: boolean | { grace: number }): number | undefined {
  if (typeof session === 'boolean') return undefined
  if (typeof session !== 'object') throw new TypeError('session must be true, false or { grace: milliseconds }')
  const { grace } = known('session', session, ['grace'])
  return whole('session.grace (ms)', grace, 1)
}

/** What to acquire, with its options checked. */
export class Request {
  readonly kind: Kind
  readonly names: readonly string[]
  readonly owner: string | undefined
  readonly lease: number
  readonly wait: number
  readonly session: boolean
  readonly grace: number | undefined
  readonly renew: boolean
  readonly signal: AbortSignal | undefined
  readonly maxHold: number | undefined
  readonly #shared: boolean
  /** The words between the lease and WAIT. */
  readonly #options: Command

  /**
   * @param limit Of a semaphore.
   * @throws TypeError if an option is unknown or of another type; RangeError if a number is not one of those that the option allows.
   */
  constructor(kind: Kind, names: readonly string[], options: LockOptions & PermitOptions, limit = 0) {
    const [title, optionNames] = KINDS[kind]
    const { lease = DEFAULT_LEASE_MS, wait = 0, session = false, renew = true, shared = false } = known(title, options, optionNames)
    for (const name of names) lockName(name)
    if (names.length === 0) throw new TypeError('no lock is named')
    this.kind = kind
    this.names = names
    this.owner = options.owner === undefined ? undefined : text('owner', options.owner)
    this.lease = whole('lease (ms)', lease, 1)
    this.wait = milliseconds('wait', wait)
    this.session = session !== false
    this.grace = graceOf(session)
    this.renew = flag('renew', renew)
    this.signal = options.signal === undefined ? undefined : signalOf(options.signal)
    this.maxHold = options.maxHold
    this.#shared = flag('shared', shared)
    this.#options = []
    if (shared) this.#options.push('SHARED')
    if (options.delay !== undefined) this.#options.push('DELAY', String(whole('delay (ms)', options.delay, 0)))
    if (options.maxHold !== undefined) this.#options.push('MAXHOLD', String(whole('maxHold (ms)', options.maxHold, 1)))
    if (kind === 'semaphore') {
      this.#options.push('LIMIT', String(whole('limit', limit, 1)), 'PERMITS', String(whole('permits', options.permits ?? 1, 1)))
    }
  }

  /** The names, as messages show them between quotes. */
  get title(): string {
    return this.names.join("', '")
  }

  /** Whether the server may replace the token of the grant: a named owner may upgrade a shared lock, which gets a token of its own. */
  get mayBeUpgraded(): boolean {
    return this.owner !== undefined && this.#shared
  }

  /**
   * The command that acquires it. The server carries out one of several copies with the same id.
   *
   * @param wait Milliseconds, `Infinity`, or 0 to ask once: that is no WAIT at all, because WAIT 0 would wait without limit.
   */
  acquire(owner: string, lease: number, wait: number, id: string): Command {
    const command: Command =
      this.kind === 'lock'
        ? ['LOCK.ACQUIRE', this.names[0] as string, owner, String(lease)]
        : this.kind === 'all'
          ? ['LOCK.ACQUIREALL', String(this.names.length), ...this.names, owner, String(lease)]
          : ['SEM.ACQUIRE', this.names[0] as string, owner, String(lease)]
    for (const option of this.#options) command.push(option)
    if (wait === Infinity) command.push('WAIT', '0')
    else if (wait > 0) command.push('WAIT', String(Math.ceil(wait)))
    command.push('REQUEST', id)
    if (this.session) command.push('SESSION')
    return command
  }

  /** The command that releases one hold of a name, or all of them; with a token, of that grant only. Copies with an id count once. */
  release(name: string, owner: string, all: boolean, token: number | undefined, id?: string): Command {
    const command = [this.kind === 'semaphore' ? 'SEM.RELEASE' : 'LOCK.RELEASE', name, owner]
    if (all) command.push('ALL')
    if (token !== undefined) command.push('TOKEN', String(token))
    if (id !== undefined) command.push('REQUEST', id)
    return command
  }

  /** The command that restarts the lease of a name; with a token, of that grant only. */
  renewal(name: string, owner: string, lease: number, token: number | undefined): Command {
    const command = [this.kind === 'semaphore' ? 'SEM.RENEW' : 'LOCK.RENEW', name, owner, String(lease)]
    if (token !== undefined) command.push('TOKEN', String(token))
    return command
  }

  /** The command that binds the grant of a name to the connection that sends it, and leaves its lease as it is. */
  keeping(name: string, owner: string, token: number | undefined): Command {
    const command = [this.kind === 'semaphore' ? 'SEM.RENEW' : 'LOCK.RENEW', name, owner, 'KEEP']
    if (token !== undefined) command.push('TOKEN', String(token))
    return command
  }

  /** The tokens in a reply, one a name; undefined if it is not granted. */
  tokens(reply: unknown): number[] | undefined {
    if (reply === null) return undefined
    return Array.isArray(reply) ? reply.map(Number) : [Number(reply)]
  }
}
