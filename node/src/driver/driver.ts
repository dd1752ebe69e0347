/** Chooses the client library, and opens connections to the node that leads. */
import { ConnectionError, ServerError } from '../errors.js'
import { type Node, type Target, parseUrl } from './address.js'
import { fromIoredis, ioredisFor } from './ioredis.js'
import type { Link } from './link.js'
import { fromNodeRedis, nodeRedisFor } from './node-redis.js'

/** Opens connections by a client library. */
export interface Driver {
  /**
   * Opens a connection to a node or a unix socket. A connection that is not `forKeys` selects no database.
   *
   * @throws ConnectionError
   */
  open(node: Node | string, timeout: number, forKeys: boolean): Promise<Link>
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
    const { target } = this.#source
    if (target.path !== undefined) return driver.open(target.path, timeout, true)
    if (target.service !== undefined) return this.#bySentinel(driver, target.service, timeout)
    const { nodes } = target
    if (nodes.length === 1) return driver.open(nodes[0] as Node, timeout, true)
    const failures: string[] = []
    let answered = false
    for (let step = 0; step < nodes.length; step++) {
      const at = (this.#last + step) % nodes.length
      const node = nodes[at] as Node
      try {
        const link = await openLeader(driver, node, timeout)
        if (link) {
          this.#last = at
          return link
        }
        answered = true
        failures.push(`${node.host}:${node.port} does not lead`)
      } catch (error) {
        failures.push(`${node.host}:${node.port}: ${(error as Error).message}`)
      }
    }
    throw new ConnectionError(failures.join('; '), false, answered)
  }

  async #bySentinel(driver: Driver, service: string, timeout: number): Promise<Link> {
    const failures: string[] = []
    let answered = false
    const { nodes } = this.#source.target
    for (let step = 0; step < nodes.length; step++) {
      const at = (this.#last + step) % nodes.length
      const node = nodes[at] as Node
      try {
        const sentinel = await driver.open(node, timeout, false)
        const address = await sentinel.call(['SENTINEL', 'get-master-addr-by-name', service], timeout).finally(() => sentinel.destroy())
        if (!Array.isArray(address)) {
          failures.push(`the sentinel ${node.host}:${node.port} knows no leader of '${service}'`)
          answered = true
          continue
        }
        const link = await openLeader(driver, { host: String(address[0]), port: Number(address[1]) }, timeout)
        if (link) {
          this.#last = at
          return link
        }
        answered = true
        failures.push(`${address[0]}:${address[1]} does not lead`)
      } catch (error) {
        failures.push(`${node.host}:${node.port}: ${(error as Error).message}`)
      }
    }
    throw new ConnectionError(failures.join('; '), false, answered)
  }
}

/** A connection to the node if it leads. */
async function openLeader(driver: Driver, node: Node, timeout: number): Promise<Link | undefined> {
  const link = await driver.open(node, timeout, true)
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
  return undefined
}
