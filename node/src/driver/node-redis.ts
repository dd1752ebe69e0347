/** Connections by node-redis, 5 or newer. */
import type { Target } from './address.js'
import type { Driver, Events, Place, Source } from './driver.js'
import type { Command, Wire } from './link.js'

/** What this package uses of a node-redis client. Its own types differ from one major version to the next. */
interface Client {
  options?: Options
  connect(): Promise<unknown>
  destroy(): void
  sendCommand(command: Command): Promise<unknown>
  subscribe(channels: string[], listener: (message: string) => void): Promise<unknown>
  unsubscribe(channels: string[]): Promise<unknown>
  duplicate(options: Options): Client
  ref(): void
  unref(): void
  on(event: string, listener: (error: Error) => void): unknown
}

interface Options {
  [option: string]: unknown
  socket?: { [option: string]: unknown; host?: string; port?: number; path?: string; tls?: boolean; servername?: string }
  database?: number
}

type Make = (options: Options) => Client

/** What this package needs otherwise than the application's client does. */
const OWN: Options = {
  // The application's URL is already in its other options, and would win over them.
  url: undefined,
  RESP: 2,
  disableOfflineQueue: true,
  disableClientInfo: true,
  pingInterval: undefined,
  clientSideCache: undefined,
  // Otherwise each command makes an AbortSignal of its own, for a time-out before it is sent.
  commandOptions: { timeout: undefined },
  commandsQueueMaxLength: undefined,
  readonly: false,
  maintNotifications: 'disabled',
}

export class NodeRedisDriver implements Driver {
  #make: Make
  #base: Options

  constructor(make: Make, base: Options) {
    this.#make = make
    this.#base = base
  }

  wire(place: Place, timeout: number, forKeys: boolean, { failed, closed }: Events): Wire {
    const socket = {
      ...this.#base.socket,
      ...place,
      connectTimeout: timeout,
      // One attempt a connection: this package decides where and when to connect again.
      reconnectStrategy: false,
      // A wait takes as long as it takes; this package has time-outs of its own.
      socketTimeout: undefined,
      keepAlive: true,
      keepAliveInitialDelay: 10_000,
    }
    const options: Options = { ...this.#base, ...OWN, socket }
    if (!forKeys) options.database = 0
    const client = this.#make(options)
    const destroy = () => {
      try {
        client.destroy()
      } catch {
        // It throws if the client has closed by itself.
      }
    }
    client.on('error', (error) => {
      failed(error)
      // After a reply that it cannot parse, the client would let its requests wait for ever.
      destroy()
      closed()
    })
    client.on('end', closed)
    client.on('terminated', closed)
    return {
      connect: () => client.connect(),
      send: (command) => client.sendCommand(command),
      subscribe: (channels, heard) => client.subscribe(channels, heard),
      unsubscribe: (channels) => client.unsubscribe(channels),
      destroy,
      ref: () => client.ref(),
      unref: () => client.unref(),
    }
  }
}

/** The options of the application's client, and the servers that it connects to. */
export function fromNodeRedis(client: unknown): Source | undefined {
  const one = client as Partial<Client>
  if (typeof one.sendCommand !== 'function' || typeof one.duplicate !== 'function') return undefined
  const { options } = one
  if (options?.['rootNodes'] !== undefined || options?.['sentinelRootNodes'] !== undefined || options === undefined) {
    throw new TypeError(
      'this client of node-redis does not show the addresses that it was made with; give connect() a URL with all nodes, such as ' +
        "'redis://a:6379,b:6379,c:6379' or 'redis+sentinel://a:26379,b:26379/mymaster'",
    )
  }
  const url = typeof options['url'] === 'string' ? new URL(options['url']) : undefined
  const { host, port, path } = options.socket ?? {}
  const node = { host: host ?? url?.hostname ?? '127.0.0.1', port: port ?? Number(url?.port || 6379) }
  const target: Target = { nodes: path ? [] : [node], path, tls: false, db: options.database ?? 0 }
  const driver = new NodeRedisDriver((own) => (one as Client).duplicate(own), options)
  return { driver: async () => driver, target }
}

/** A driver for a URL. */
export async function nodeRedisFor(target: Target, name: string | undefined, tls: object | undefined): Promise<Driver> {
  const module = (await import('redis')) as unknown as { createClient?: Make; default?: { createClient: Make } }
  const make = module.createClient ?? module.default?.createClient
  if (!make) throw new TypeError('the package redis has no createClient: it is too old; install redis 5 or newer')
  const { username, password, db } = target
  return new NodeRedisDriver(make, { username, password, database: db, name, socket: target.tls ? { ...tls, tls: true } : {} })
}
