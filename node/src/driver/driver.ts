/** Chooses the client library, and opens connections to the node that leads. */
import { ConnectionError, ServerError, TlsError } from '../errors.js'
import { type Node, type Target, nodeText, parseUrl } from './address.js'
import { fromIoredis, ioredisFor } from './ioredis.js'
import { Link, type Wire } from './link.js'
import { fromNodeRedis, nodeRedisFor } from './node-redis.js'

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

/** Makes a source of a URL or of an application's client. */
export function sourceOf(to: string | object, options: SourceOptions): Source {
  if (typeof to === 'string') {
    const target = parseUrl(to)
    return { driver: () => load(target, options), target }
  }
  const source = fromIoredis(to) ?? fromNodeRedis(to)
  if (!source) throw new TypeError('connect() takes a URL, a client of ioredis, or a client of node-redis')
  return source
}

async function load(target: Target, { driver, name, tls }: SourceOptions): Promise<Driver> {
  const loaders = { ioredis: ioredisFor, 'node-redis': nodeRedisFor }
  const names: DriverName[] = driver ? [driver] : ['ioredis', 'node-redis']
  for (const each of names) {
    try {
      return await loaders[each](target, name, tls)
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

  constructor(source: Source) {
    this.#source = source
  }

  /** The node that led last does not lead any more: the next attempt begins with another one. */
  leaderIsGone(): void {
    this.#last++
  }

  /**
   * Opens a connection to the node that leads.
   *
   * @param timeout Milliseconds for each node.
   * @throws ConnectionError if no node answers, or none leads.
   */
  async dial(timeout: number): Promise<Link> {
    const driver = await (this.#driver ??= this.#source.driver())
    const { nodes, path, service } = this.#source.target
    if (path !== undefined) return open(driver, path, timeout)
    if (nodes.length === 1 && service === undefined) return open(driver, nodes[0] as Node, timeout)
    const failures: Error[] = []
    const texts: string[] = []
    for (let step = 0; step < nodes.length; step++) {
      const at = (this.#last + step) % nodes.length
      const node = nodes[at] as Node
      try {
        const link = await openLeader(driver, service === undefined ? node : await leaderOf(driver, node, service, timeout), timeout)
        this.#last = at
        return link
      } catch (error) {
        failures.push(error as Error)
        texts.push(namesNode(error) ? error.message : `${nodeText(node)}: ${(error as Error).message}`)
      }
    }
    const noLeader = failures.some((failure) => failure instanceof ConnectionError && failure.noLeader)
    if (failures.every((failure) => failure instanceof TlsError)) throw new TlsError(texts.join('; '))
    throw new ConnectionError(texts.join('; '), false, noLeader)
  }
}

/**
 * Opens a connection to a node or a unix socket.
 *
 * @throws ConnectionError
 */
async function open(driver: Driver, to: Node | string, timeout: number, forKeys = true): Promise<Link> {
  const place = typeof to === 'string' ? { path: to, host: undefined, port: undefined } : { ...to, path: undefined }
  let failure: Error | undefined
  let link: Link | undefined
  const wire = driver.wire(place, timeout, forKeys, { failed: (error) => (failure = error), closed: () => link?.closed() })
  link = new Link(wire)
  try {
    await wire.connect()
  } catch (error) {
    link.destroy()
    throw notOpened(typeof to === 'string' ? to : nodeText(to), failure ?? (error as Error))
  }
  if (forKeys) link.askNumber()
  return link
}

/** What to do about an error of TLS, by its code. */
const CERTIFICATES: ReadonlyArray<readonly [RegExp, string]> = [
  [/^(ERR_TLS_CERT_ALTNAME_INVALID|HOSTNAME_MISMATCH)$/, 'connect to a name that it is for'],
  [/^CERT_(HAS_EXPIRED|NOT_YET_VALID)$/, 'give the server one that is valid now'],
  [/^(CERT_|(DEPTH_ZERO_)?SELF_SIGNED|UNABLE_TO_(GET_ISSUER|VERIFY)|INVALID_)/, "give its authority's certificate as `tls: { ca }`"],
]

function notOpened(where: string, error: NodeJS.ErrnoException): ConnectionError {
  const { code = '', message } = error
  const [, advice] = CERTIFICATES.find(([codes]) => codes.test(code)) ?? []
  if (advice) return new TlsError(`the certificate of the server ${where} is not accepted (${message}): ${advice}`)
  if (code === 'ERR_SSL_WRONG_VERSION_NUMBER') return new TlsError(`the server ${where} does not speak TLS on this port: give the port of its \`--tls-port\`, or use redis://`)
  return new ConnectionError(message, false)
}

/** Whether the message says which node it is about. */
function namesNode(error: unknown): error is ConnectionError {
  return error instanceof TlsError || (error instanceof ConnectionError && error.noLeader)
}

/** The node that a sentinel names. */
async function leaderOf(driver: Driver, sentinel: Node, service: string, timeout: number): Promise<Node> {
  const link = await open(driver, sentinel, timeout, false)
  const address = await link.call(['SENTINEL', 'get-master-addr-by-name', service], timeout).finally(() => link.destroy())
  if (!Array.isArray(address)) throw new ConnectionError(`the sentinel ${nodeText(sentinel)} knows no leader of '${service}'`, false, true)
  return { host: String(address[0]), port: Number(address[1]) }
}

/** Opens a connection to the node if it leads. */
async function openLeader(driver: Driver, node: Node, timeout: number): Promise<Link> {
  const link = await open(driver, node, timeout)
  try {
    const role = await link.call(['ROLE'], timeout)
    if (Array.isArray(role) && role[0] === 'master') return link
  } catch (error) {
    if (!(error instanceof ServerError)) throw error
    // The user may not ask. The node's answer to the first request tells.
    if (error.code === 'NOPERM') return link
    // A node that loads its log does not lead.
  }
  link.destroy()
  throw new ConnectionError(`${nodeText(node)} does not lead`, false, true)
}
