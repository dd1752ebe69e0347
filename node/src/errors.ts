/** The errors of this package. Each message says what to do, if there is something to do. */

/** What all errors of this package extend. */
export class LockError extends Error {
  /** The first word of the server's error, such as `WRONGTYPE`; empty if the error is not the server's. */
  readonly code: string

  constructor(message: string, options: { cause?: unknown; code?: string } = {}) {
    super(message, options)
    this.code = options.code ?? ''
    this.name = new.target.name
  }
}

/** Who holds a lock. */
export interface Holder {
  /** The owner, as the server knows it. */
  owner: string
  token: number
  /** Number of times that the owner has acquired it and not released it. */
  holds: number
  mode: string
  /** Milliseconds that are left of the lease. */
  lease: number
  /** Milliseconds since the grant. */
  held: number
  /** Whether the grant is bound to a connection. */
  session: boolean
  /** Number of the connection that acquired it. */
  client: number
  addr: string
  /** The connection's name; empty if it has none. */
  clientName: string
  /** Milliseconds since that connection ended; null while it is connected. */
  gone: number | null
  user: string
  /** Number of renewals. */
  renewed: number
}

/** The lock was not granted within the wait. */
export class NotAcquiredError extends LockError {
  constructor(
    message: string,
    /** The names that were asked for. */
    readonly names: readonly string[],
    /** Who held them shortly after; empty if nobody did, or if the server could not be asked. */
    readonly holders: readonly Holder[],
  ) {
    super(message)
    this.name = 'NotAcquiredError'
  }
}

/** The lock is not held, or no longer held. `cause` is the server's reason, or why this process gave the lock up. */
export class NotHeldError extends LockError {
  declare readonly cause: string

  constructor(message: string, cause: string) {
    super(message, { cause, code: 'NOTHELD' })
    this.name = 'NotHeldError'
  }
}

/** One owner of a cycle, and what it waits for. */
export interface Wait {
  owner: string
  /** The lock that the owner waits for; empty for one that the user may not see, or several that the server left out. */
  lock: string
  /** The owner that it waits for. */
  behind: string
  /** Whether that owner is known to hold the lock; otherwise it may be ahead in the queue. */
  held: boolean
}

/** The wait would have closed a cycle of owners that wait for each other. Release what you hold, and begin anew. */
export class DeadlockError extends LockError {
  constructor(
    message: string,
    /** The cycle, from the refused owner on. Empty if quotes in names make the server's text ambiguous. */
    readonly cycle: readonly Wait[],
  ) {
    super(message, { code: 'DEADLOCK' })
    this.name = 'DeadlockError'
  }
}

/** The resource has seen a larger fencing token: another owner has held the lock since. Do not write. */
export class StaleTokenError extends LockError {
  constructor(
    message: string,
    readonly token: number,
    /** The largest token that the resource has seen. */
    readonly seen: number,
  ) {
    super(message, { code: 'STALE' })
    this.name = 'StaleTokenError'
  }
}

/** The server does not know the lock commands. */
export class NotPortcullisError extends LockError {
  constructor(message: string) {
    super(message)
    this.name = 'NotPortcullisError'
  }
}

/** No connection, or no reply, within the time-out. `cause` is the last failure. */
export class UnreachableError extends LockError {
  constructor(message: string, cause?: unknown) {
    super(message, { cause })
    this.name = 'UnreachableError'
  }
}

/** Nodes answer, and none of them leads. */
export class NoLeaderError extends UnreachableError {
  constructor(message: string, cause?: unknown) {
    super(message, cause)
    this.name = 'NoLeaderError'
  }
}

/** An error reply. Internal: callers get one of the classes above. */
export class ServerError extends Error {
  readonly code: string
  /** The text after the code. */
  readonly text: string

  constructor(message: string) {
    super(message)
    const blank = message.indexOf(' ')
    this.code = blank < 0 ? message : message.slice(0, blank)
    this.text = blank < 0 ? '' : message.slice(blank + 1)
  }

  /** Whether the node does not lead, or not yet: another node, or the same one later, can answer. Nothing was carried out. */
  get isOfNode(): boolean {
    // A wait ended because the node no longer leads. `CLIENT UNBLOCK … ERROR` has the same code and another text.
    return NODE_CODES.has(this.code) || (this.code === 'UNBLOCKED' && this.text.startsWith('force unblock '))
  }
}

const NODE_CODES = new Set(['READONLY', 'LOADING', 'CLUSTERDOWN', 'MASTERDOWN', 'MOVED', 'TRYAGAIN'])

/** A connection broke, or could not be opened. Internal: the request is repeated, and at the end there is an UnreachableError. */
export class ConnectionError extends Error {
  constructor(
    message: string,
    /** Whether the server may have carried the request out. */
    readonly maybeApplied: boolean,
    /** Whether nodes answered, and none of them leads. */
    readonly noLeader = false,
  ) {
    super(message)
  }
}

/**
 * A connection that would fail the same way again, so there is no other attempt: the certificate is not accepted, the log-in is wrong, the
 * database does not exist, or no Redis server answers. Internal: callers get `outcome`.
 */
export class FinalError extends ConnectionError {
  constructor(readonly outcome: LockError) {
    super(outcome.message, false)
  }
}

/** What to do about a refusal that is not about locks, by the server's text. */
const ADVICE: ReadonlyArray<readonly [RegExp, string]> = [
  [/^(WRONGPASS |ERR (invalid password|AUTH |Client sent AUTH))/, 'check the user and the password that connect() is given'],
  [/^NOAUTH /, 'give connect() a password, as in redis://user:password@host:6379'],
  [/^NOPERM /, 'let the user do that, with ACL SETUSER on the server'],
  [/^ERR (DB index |invalid DB index|SELECT )/, 'give connect() a database that the server has; the server has 16, from 0 on, unless it was started with `--databases`'],
  [/^ERR Client names /, 'give the connections another name'],
  [/^DENIED /, 'read what the server says of its protected mode'],
]

/**
 * The error for the caller if the server refuses the log-in, the database or the user; undefined for other error replies.
 *
 * @param where The server's address, for a connection that is being opened.
 */
export function refusal(error: ServerError, where?: string): LockError | undefined {
  const [, advice] = ADVICE.find(([texts]) => texts.test(error.message)) ?? []
  if (advice === undefined) return undefined
  const text = error.message.replace(/\.$/, '')
  return new LockError(`${where === undefined ? text : `the server ${where} refuses the connection (${text})`}: ${advice}`, { code: error.code })
}

/** The error for the caller, from an error reply. */
export function fromReply(error: ServerError): LockError {
  const { code, text } = error
  switch (code) {
    case 'NOTHELD':
      return new NotHeldError(text, text.slice(text.indexOf(': ') + 2))
    case 'DEADLOCK':
      return new DeadlockError(`deadlock: ${text}; release what you hold, and begin anew`, cycle(text))
    case 'STALE': {
      const [, token, seen] = /^token (\d+) is behind (\d+) /.exec(text) ?? []
      return new StaleTokenError(`${text}: another owner has held the lock since; do not write`, Number(token), Number(seen))
    }
  }
  if (code === 'WRONGTYPE') {
    return new LockError(`${error.message}: the name belongs to something else (a guard, for instance, cannot have its lock's name); ask info()`, { code })
  }
  if (/^ERR unknown (sub)?command/i.test(error.message)) return notPortcullis(error)
  return refusal(error) ?? new LockError(error.message, { code })
}

function notPortcullis(error: ServerError): NotPortcullisError {
  return new NotPortcullisError(
    `the server does not know the lock commands (${error.message.split(',')[0]}): it is no Portcullis server; ` +
      'start one with `npx portcullis serve`, and connect to its port',
  )
}

/** Parses `'x' waits for 'a' held by 'y', who waits for 'b' asked for before by 'x'`. */
export function cycle(reply: string): Wait[] {
  const text = reply.replace(/ waits for (a lock that you may not see|locks that are not shown here) behind '/g, " waits for '' asked for before by '")
  const start = /^'(.*?)' waits for '/.exec(text)
  if (!start || !text.endsWith("'")) return []
  const first = start[1] as string
  let owner = first
  const waits: Wait[] = []
  for (const step of text.slice(start[0].length, -1).split("', who waits for '")) {
    const held = step.includes("' held by '")
    const parts = step.split(held ? "' held by '" : "' asked for before by '")
    if (parts.length !== 2) return []
    const [lock, behind] = parts as [string, string]
    waits.push({ owner, lock, behind, held })
    owner = behind
  }
  return owner === first ? waits : []
}
