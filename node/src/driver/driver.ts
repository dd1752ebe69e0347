/** Chooses the client library, and opens connections to the node that leads. */
import { ConnectionError, FinalError, ServerError, UnreachableError, refusal } from '../errors.js'
import { networkNow, networkTimer, networkTurn } from '../time.js'
import { type Node, type Target, nodeText, parseUrl } from './address.js'
import { fromIoredis, ioredisFor } from './ioredis.js'
import { Link, type Wire } from './link.js'
import { fromNodeRedis, nodeRedisFor } from './node-redis.js'
import { notOpened } from './refusals.js'

/** Where a connection leads: to a host and port, or to a unix socket. The fields of the other are undefined. */
export interface Place {
  host: string | undefined
  port: number | undefined
  path: string | undefined
}

/** What happens to a connection. */
export interface Events {
  failed(error: Error): void
  closed(): void
}

/** Makes connections by a client library. */
export interface Driver {
  /** Makes a connection, which `connect` opens. One that is not `forKeys` selects no database. */
  wire(place: Place, timeout: number, forKeys: boolean, events: Events): Wire
}

/** Where connections come from. */
export interface Source {
  driver(): Promise<Driver>
  target: Target
}

/** The client library to use with a URL. */
export type DriverName = 'ioredis' | 'node-redis'

/** What a source is made from besides a URL. */
export interface SourceOptions {
  driver?: DriverName | undefined
  name?: string | undefined
  tls?: object | undefined
}

const SOURCES = "the server's URL, such as 'redis://127.0.0.1:6379', a client of ioredis, or a client of node-redis"

/**
 * Makes a source of a URL or of an application's client.
 *
 * @throws TypeError if it is neither.
 */
export function sourceOf(to: unknown, options: SourceOptions): Source {
  if (to === null || to === undefined || to === '') {
    throw new TypeError(`connect() takes ${SOURCES}, and was given ${to === '' ? 'an empty text' : String(to)}: is an environment variable unset?`)
  }
  if (typeof to === 'string') {
    const target = parseUrl(to)
    return { driver: () => load(target, options), target }
  }
  const source = fromIoredis(to) ?? fromNodeRedis(to)
  if (!source) throw new TypeError(`connect() takes ${SOURCES}`)
  return source
}

async function load(target: Target, { driver, name, tls }: SourceOptions): Promise<Driver> {
  const loaders = { ioredis: ioredisFor, 'node-redis': nodeRedisFor }
  const names: DriverName[] = driver ? [driver] : ['ioredis', 'node-redis']
  for (const each of names) {
    try {
      return await loaders[each](target, name ?? target.name, tls)
    } catch (error) {
      if (!/^(ERR_)?MODULE_NOT_FOUND$/.test((error as NodeJS.ErrnoException).code ?? '')) throw error
    }
  }
  const packages = names.map((each) => (each === 'ioredis' ? 'ioredis' : 'redis'))
  throw new TypeError(`portcullis-lock needs a Redis client: npm install ${packages.join(' (or: npm install ')}${packages.length > 1 ? ')' : ''}`)
}

/** Opens connections to the leader. */
export class Dialer {
  #source: Source
  #driver: Promise<Driver> | undefined
  /** Position of the node that led last. */
  #last = 0
  #wasReached = false

  constructor(source: Source) {
    this.#source = source
  }

  /** Whether a server has ever answered. */
  get wasReached(): boolean {
    return this.#wasReached
  }

  /** Whether there are several nodes, of which another one may come to lead. */
  get hasNodes(): boolean {
    const { nodes, service } = this.#source.target
    return nodes.length > 1 || service !== undefined
  }

  /** The node that led last does not lead any more: the next attempt begins with another one. */
  leaderIsGone(): void {
    this.#last++
  }

  /** A node did not answer in time: the next attempt begins with another one. */
  isSilent(where: string): void {
    const { nodes, service } = this.#source.target
    // Another attempt may have found the leader meanwhile. Of sentinels it is not known which one is the node's.
    if (service !== undefined || nodeText(nodes[this.#last % nodes.length] as Node) === where) this.#last++
  }

  /**
   * Opens a connection to the node that leads.
   *
   * @param timeout Milliseconds for each node.
   * @param until When the whole attempt ends, by `networkNow`.
   * @throws ConnectionError if no node answers, or none leads; FinalError if another attempt would fail the same way.
   */
  async dial(timeout: number, until = Infinity): Promise<Link> {
    const driver = await (this.#driver ??= this.#source.driver())
    const { nodes, path, service } = this.#source.target
    let others = 0
    // A node that does not answer leaves time for the others.
    const left = () => Math.max(1, Math.min(timeout, (until - networkNow()) / (1 + others)))
    const onReply = () => (this.#wasReached = true)
    if (path !== undefined) return open(driver, path, left(), onReply)
    if (nodes.length === 1 && service === undefined) return open(driver, nodes[0] as Node, left(), onReply)
    const failures: Error[] = []
    const texts: string[] = []
    for (let step = 0; step < nodes.length && (step === 0 || networkNow() < until); step++) {
      const at = (this.#last + step) % nodes.length
      others = nodes.length - 1 - step
      const node = nodes[at] as Node
      try {
        const link = await openLeader(driver, service === undefined ? node : await leaderOf(driver, node, service, left()), left(), onReply)
        this.#last = at
        return link
      } catch (error) {
        const refused = error instanceof ServerError ? refusal(error, nodeText(node)) : undefined
        const failure = refused ? new FinalError(refused) : (error as Error)
        failures.push(failure)
        texts.push(namesNode(failure) ? failure.message : `${nodeText(node)}: ${failure.message}`)
      }
    }
    const noLeader = failures.some((failure) => failure instanceof ConnectionError && failure.noLeader)
    if (noLeader) onReply()
    throw finalOf(failures, texts) ?? new ConnectionError(texts.join('; '), false, noLeader)
  }
}

/**
 * The error if another attempt would fail the same way. Nodes of one server have the same users: one that refuses the log-in stands for
 * those that do not answer. A certificate is each node's own.
 */
function finalOf(failures: Error[], texts: string[]): FinalError | undefined {
  const finals = failures.filter((failure) => failure instanceof FinalError)
  const refused = finals.find((failure) => !(failure.outcome instanceof UnreachableError))
  const hasAnswer = failures.some((failure) => failure instanceof ConnectionError && failure.noLeader)
  if (refused) return hasAnswer ? undefined : refused
  return finals.length === failures.length ? new FinalError(new UnreachableError(texts.join('; '))) : undefined
}

/**
 * Opens a connection to a node or a unix socket, and has its database selected.
 *
 * @param timeout Milliseconds for all of that.
 * @param onReply Called when the server has answered. Without it, the connection is not for keys.
 * @throws ConnectionError; FinalError.
 */
async function open(driver: Driver, to: Node | string, timeout: number, onReply?: () => void): Promise<Link> {
  const where = typeof to === 'string' ? to : nodeText(to)
  const place = typeof to === 'string' ? { path: to, host: undefined, port: undefined } : { ...to, path: undefined }
  let failure: Error | undefined
  let link: Link | undefined
  const failed = (error: Error) => {
    // Further ones follow from the first.
    failure ??= error
    link?.failed(error)
  }
  const wire = driver.wire(place, timeout, onReply !== undefined, { failed, closed: () => link?.closed() })
  const opened = (link = new Link(wire, where))
  const late = networkTimer(timeout, () => {
    failure ??= new Error(`no connection within ${Math.ceil(timeout)} ms`)
    opened.destroy()
  })
  try {
    // A client library may leave the promise of a connection open that is destroyed meanwhile. Its own error, if there is one, comes first.
    const closed = new Promise((_, reject) => opened.onClosed(() => void networkTurn().then(() => reject(new Error('the connection was closed')))))
    await Promise.race([wire.connect(), closed])
  } catch (error) {
    opened.destroy()
    throw notOpened(where, failure ?? (error as Error))
  } finally {
    late.cancel()
  }
  if (onReply) opened.askNumber(onReply)
  return opened
}

/** Whether the message says which node it is about. */
function namesNode(error: unknown): error is ConnectionError {
  return error instanceof FinalError || (error instanceof ConnectionError && error.noLeader)
}

/** The node that a sentinel names. */
async function leaderOf(driver: Driver, sentinel: Node, service: string, timeout: number): Promise<Node> {
  const link = await open(driver, sentinel, timeout)
  const address = await link.call(['SENTINEL', 'get-master-addr-by-name', service], timeout).finally(() => link.destroy())
  if (!Array.isArray(address)) throw new ConnectionError(`the sentinel ${nodeText(sentinel)} knows no leader of '${service}'`, false, true)
  return { host: String(address[0]), port: Number(address[1]) }
}

/** Opens a connection to the node if it leads. */
async function openLeader(driver: Driver, node: Node, timeout: number, onReply: () => void): Promise<Link> {
  const link = await open(driver, node, timeout, onReply)
  try {
    const role = await link.call(['ROLE'], timeout)
    if (Array.isArray(role) && role[0] === 'master') return link
  } catch (error) {
    if (!(error instanceof ServerError)) throw error
    // The user may not ask. The node's answer to the first request tells.
    if (error.code === 'NOPERM') return link
    if (error.code === 'NOAUTH') {
      link.destroy()
      throw error
    }
    // A node that loads its log does not lead.
  }
  link.destroy()
  throw new ConnectionError(`${nodeText(node)} does not lead`, false, true)
}
