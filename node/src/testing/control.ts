/**
 * The hooks' own connection to the server, for CLOCK and FAULT. It needs no client library, sends nothing that a fault could hit,
 * and uses no timers, so that fake ones cannot stop it.
 */
import net from 'node:net'
import { pause } from '../time.js'

/** An error reply. */
export class ReplyError extends Error {
  override name = 'ReplyError'
}

interface Waiting {
  resolve(reply: unknown): void
  reject(error: Error): void
}

/** Attempts to connect, a millisecond apart: a server that restarts comes back within one or two. */
const ATTEMPTS = 200

export class Control {
  readonly #host: string
  readonly #port: number
  #socket: net.Socket | undefined
  #waiting: Waiting[] = []
  #received = Buffer.alloc(0)
  #isCloseAwaited = false
  /** Whether another connection may follow the first. */
  readonly #reconnects: boolean
  #wasConnected = false

  constructor(host: string, port: number, reconnects = true) {
    this.#host = host
    this.#port = port
    this.#reconnects = reconnects
  }

  /** Sends a command. Connects first if there is no connection. */
  async call(...words: Array<string | number>): Promise<unknown> {
    const socket = this.#socket ?? (await this.#connect())
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject })
      socket.ref()
      const parts = words.map((word) => `$${Buffer.byteLength(String(word))}\r\n${word}\r\n`)
      socket.write(`*${words.length}\r\n${parts.join('')}`)
    })
  }

  /** Resolves when the server closes the present connection. */
  closed(): Promise<void> {
    const socket = this.#socket
    if (!socket) return Promise.resolve()
    this.#isCloseAwaited = true
    socket.ref()
    return new Promise((resolve) =>
      socket.once('close', () => {
        this.#isCloseAwaited = false
        resolve()
      }),
    )
  }

  close(): void {
    this.#socket?.destroy()
  }

  async #connect(): Promise<net.Socket> {
    if (this.#wasConnected && !this.#reconnects) throw new Error(`the connection to the server at ${this.#host}:${this.#port} broke, or was closed`)
    for (let attempt = 1; ; attempt++) {
      const socket = net.connect({ host: this.#host, port: this.#port, noDelay: true })
      const error = await new Promise<Error | undefined>((resolve) => socket.once('connect', () => resolve(undefined)).once('error', resolve))
      if (!error) return this.#use(socket)
      if (attempt === ATTEMPTS) throw error
      await pause(1)
    }
  }

  #use(socket: net.Socket): net.Socket {
    this.#socket = socket
    this.#wasConnected = true
    this.#received = Buffer.alloc(0)
    let failure = new Error('the server closed the connection')
    socket.on('data', (data) => this.#read(socket, data))
    socket.on('error', (error) => (failure = error))
    socket.on('close', () => {
      if (this.#socket === socket) this.#socket = undefined
      for (const waiting of this.#waiting.splice(0)) waiting.reject(failure)
    })
    return socket
  }

  #read(socket: net.Socket, data: Buffer): void {
    this.#received = Buffer.concat([this.#received, data])
    for (;;) {
      const parsed = parse(this.#received, 0)
      if (!parsed) break
      this.#received = this.#received.subarray(parsed.end)
      const waiting = this.#waiting.shift()
      if (parsed.value instanceof ReplyError) waiting?.reject(parsed.value)
      else waiting?.resolve(parsed.value)
    }
    if (this.#waiting.length === 0 && !this.#isCloseAwaited) socket.unref()
  }
}

/** A reply of RESP2 and where it ends; undefined if it is not complete. */
function parse(bytes: Buffer, at: number): { value: unknown; end: number } | undefined {
  const line = bytes.indexOf('\r\n', at)
  if (line < 0) return undefined
  const text = bytes.toString('utf8', at + 1, line)
  let end = line + 2
  switch (String.fromCharCode(bytes[at] as number)) {
    case '+':
      return { value: text, end }
    case '-':
      return { value: new ReplyError(text), end }
    case ':':
      return { value: Number(text), end }
    case '$': {
      const size = Number(text)
      if (size < 0) return { value: null, end }
      if (bytes.length < end + size + 2) return undefined
      return { value: bytes.toString('utf8', end, end + size), end: end + size + 2 }
    }
    case '*': {
      const count = Number(text)
      if (count < 0) return { value: null, end }
      const list: unknown[] = []
      while (list.length < count) {
        const item = parse(bytes, end)
        if (!item) return undefined
        list.push(item.value)
        end = item.end
      }
      return { value: list, end }
    }
  }
  throw new Error(`the server answers ${JSON.stringify(text)}, which is no reply of RESP2`)
}

/** A map of RESP2, which is a list of names and values. */
export function pairs(list: unknown): Record<string, unknown> {
  const map: Record<string, unknown> = {}
  if (Array.isArray(list)) for (let at = 0; at + 1 < list.length; at += 2) map[String(list[at])] = list[at + 1]
  return map
}
