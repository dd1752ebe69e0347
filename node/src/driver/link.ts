/**
 * One connection to one node, over whichever client library. It never connects again by itself: this package repeats requests over
 * another connection, which may lead to another node.
 *
 * A link carries one request or one batch at a time. So a reply that is lost or late cannot be taken for that of another request.
 */
import { ConnectionError, ServerError } from '../errors.js'
import { type Timer, networkTimer } from '../time.js'
import { isReply, notRedis } from './refusals.js'

/** The words of a command. */
export type Command = string[]

/** A connection of a client library: what a driver implements. */
export interface Wire {
  /** Opens it, once. Rejects with the client library's error. */
  connect(): Promise<unknown>
  /** Sends a command. Rejects with the client library's error. */
  send(command: Command): Promise<unknown>
  /** Subscribes to channels, and calls the listener of the first call with each message. Rejects with the client library's error. */
  subscribe(channels: string[], heard: (message: string) => void): Promise<unknown>
  unsubscribe(channels: string[]): Promise<unknown>
  /** Closes the connection at once. */
  destroy(): void
  ref(): void
  unref(): void
}

/** A time-out that is shorter has a timer of its own; `sweep` sees the longer ones, up to two of its intervals late. Milliseconds. */
const SWEPT_MS = 500

export class Link {
  #wire: Wire
  #closed = false
  #onClosed: Array<() => void> = []
  /** Why the link was closed by this package, if it was. */
  #why = ''
  /** The first failure that the client library told of. */
  #firstFailure: Error | undefined
  /** Time-out of the reply that is due; `Infinity` for none. */
  #timeout = Infinity
  /** When the reply is due, by `networkNow`; 0 until a sweep has seen the request. */
  #due = 0
  /** The timer of a time-out that is not swept. */
  #timer: Timer | undefined
  #keepsProcess = true
  /** Whether a request uses it, or a wait or session does. The pool sets it. */
  isBusy = false
  /** Whether that is a wait or a session. */
  isWait = false
  /** Whether the pool calls `sweep`. Until then each time-out has a timer of its own. */
  isSwept = false
  /** What `CLIENT ID` answers on it; undefined until `askNumber` has its reply. */
  number: number | undefined

  /** @param where The server's address, for messages. */
  constructor(
    wire: Wire,
    readonly where: string,
  ) {
    this.#wire = wire
  }

  get isClosed(): boolean {
    return this.#closed
  }

  /** Runs `work` when the connection closes; at once if it has. */
  onClosed(work: () => void): void {
    if (this.#closed) work()
    else this.#onClosed.push(work)
  }

  /** Has to be called with each failure of the connection, before `closed`: the errors of its requests may not tell the cause. */
  failed(error: Error): void {
    this.#firstFailure ??= error
  }

  /** Has to be called when the connection has closed. */
  closed(): void {
    if (this.#closed) return
    this.#closed = true
    for (const work of this.#onClosed.splice(0)) work()
  }

  /** Closes the connection at once. The server then ends what waits on it. */
  destroy(why = 'it was closed'): void {
    if (this.#closed) return
    this.#why = why
    this.#wire.destroy()
    this.closed()
  }

  /** Whether the connection keeps the process alive. */
  keepProcess(keep: boolean): void {
    if (keep === this.#keepsProcess) return
    this.#keepsProcess = keep
    if (keep) this.#wire.ref()
    else this.#wire.unref()
  }

  /**
   * The pool calls this every now and then: closes the connection if its reply is overdue, and lets an idle one no longer keep the
   * process. Returns whether there is more to do later.
   */
  sweep(now: number): boolean {
    if (this.#timeout !== Infinity) {
      if (this.#due === 0) this.#due = now + this.#timeout
      if (now >= this.#due) {
        this.destroy('no reply within the time-out')
        return false
      }
      return true
    }
    if (!this.isBusy) this.keepProcess(false)
    return this.isBusy
  }

  /**
   * Asks for the connection's number, ahead of the first request and without waiting for the reply.
   *
   * @param onReply Called with any reply.
   */
  askNumber(onReply: () => void): void {
    this.#wire.send(['CLIENT', 'ID']).then(
      (reply) => {
        this.number = Number(reply)
        onReply()
      },
      (error: unknown) => {
        if (isReply(error)) onReply()
      },
    )
  }

  /**
   * Subscribes to channels. The connection then serves nothing else.
   *
   * @throws ServerError; ConnectionError.
   */
  async subscribe(channels: string[], heard: (message: string) => void): Promise<void> {
    try {
      await this.#wire.subscribe(channels, heard)
    } catch (error) {
      throw this.#understood(error)
    }
  }

  async unsubscribe(channels: string[]): Promise<void> {
    await this.#wire.unsubscribe(channels)
  }

  /**
   * Sends one command, and resolves with its reply.
   *
   * @param timeout Milliseconds; `Infinity` for none.
   * @throws ServerError for an error reply; ConnectionError if the connection breaks or the time-out is over. The connection is then
   * closed.
   */
  call(command: Command, timeout: number): Promise<unknown> {
    this.#expect(timeout)
    return this.#wire.send(command).then(this.#reply, this.#failure)
  }

  /**
   * Sends commands in one batch, and resolves with all replies; error replies are values.
   *
   * @throws ConnectionError as `call`. No reply is used then: if one is missing, it is unknown which.
   */
  callMany(commands: Command[], timeout: number): Promise<unknown[]> {
    if (commands.length > 1) return this.#callAll(commands, timeout)
    this.#expect(timeout)
    return this.#wire.send(commands[0] as Command).then(this.#onlyReply, this.#onlyFailure)
  }

  async #callAll(commands: Command[], timeout: number): Promise<unknown[]> {
    this.#expect(timeout)
    try {
      return await Promise.all(commands.map((command) => this.#wire.send(command).catch((error: unknown) => this.#replyIn(error))))
    } finally {
      this.#answered()
    }
  }

  #expect(timeout: number): void {
    if (timeout < SWEPT_MS || (!this.isSwept && timeout !== Infinity)) {
      this.#timer = networkTimer(timeout, () => this.destroy(`no reply within ${Math.round(timeout)} ms`))
    } else {
      this.#timeout = timeout
      this.#due = 0
    }
  }

  #answered(): void {
    this.#timeout = Infinity
    this.#timer?.cancel()
    this.#timer = undefined
  }

  // What becomes of replies. These are made once for each connection, and not for each request.
  readonly #reply = (reply: unknown): unknown => {
    this.#answered()
    return reply
  }
  readonly #failure = (error: unknown): never => {
    this.#answered()
    throw this.#understood(error)
  }
  readonly #onlyReply = (reply: unknown): unknown[] => {
    this.#answered()
    return [reply]
  }
  readonly #onlyFailure = (error: unknown): unknown[] => {
    this.#answered()
    return [this.#replyIn(error)]
  }

  /** The error reply in an error; throws the error if it is none. */
  #replyIn(error: unknown): ServerError {
    const understood = this.#understood(error)
    if (understood instanceof ServerError) return understood
    throw understood
  }

  #understood(error: unknown): Error {
    if (isReply(error)) return new ServerError(error.message)
    const cause = this.#firstFailure ?? error
    const message = this.#why || (cause instanceof Error ? cause.message : String(cause))
    this.destroy(message)
    return notRedis(this.where, cause) ?? new ConnectionError(message, true)
  }
}
