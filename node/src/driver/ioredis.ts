/** Connections by ioredis, 5 or newer. */
import type { Redis as Client, RedisOptions } from 'ioredis'
import type { Node, Target } from './address.js'
import type { Driver, Events, Place, Source } from './driver.js'
import type { Wire } from './link.js'

type Make = (options: RedisOptions) => Client

/** What this package needs otherwise than the application's client does. */
const OWN: RedisOptions = {
  lazyConnect: true,
  enableReadyCheck: false,
  enableOfflineQueue: false,
  enableAutoPipelining: false,
  autoResubscribe: false,
  autoResendUnfulfilledCommands: false,
  // One attempt a connection: this package decides where and when to connect again.
  retryStrategy: () => null,
  reconnectOnError: null,
  maxRetriesPerRequest: 0,
  // A wait takes as long as it takes; this package has time-outs of its own.
  commandTimeout: undefined,
  socketTimeout: undefined,
  keepAlive: 10_000,
  keyPrefix: '',
  stringNumbers: false,
  readOnly: false,
  monitor: false,
  disableClientInfo: true,
  // Sentinels are asked by this package.
  sentinels: undefined,
  // ioredis sends requests before these have replies, and goes on in database 0 if it may not select another one. `login` does it.
  username: undefined,
  password: undefined,
  db: 0,
  connectionName: undefined,
}

export class IoredisDriver implements Driver {
  #make: Make
  #base: RedisOptions
  /** What `OWN` takes out of the options. */
  #login: Pick<RedisOptions, 'username' | 'password' | 'db' | 'connectionName'>

  constructor(make: Make, base: RedisOptions) {
    this.#make = make
    // Only ioredis 6 has a choice of protocols, and its types are not those of 5.
    this.#base = { ...base, ...OWN, protocol: 2 } as RedisOptions
    this.#login = base
  }

  wire(place: Place, timeout: number, forKeys: boolean, { failed, closed }: Events): Wire {
    const options: RedisOptions = { ...this.#base, ...place, connectTimeout: timeout }
    const client = this.#make(options)
    client.on('error', failed)
    client.once('close', closed)
    let isListening = false
    return {
      connect: async () => {
        await client.connect()
        await this.#logIn(client, forKeys)
      },
      send: (command) => client.call(...(command as [string, ...string[]])),
      subscribe: (channels, heard) => {
        if (!isListening) client.on('message', (_, message) => heard(message))
        isListening = true
        return client.subscribe(...channels)
      },
      unsubscribe: (channels) => client.unsubscribe(...channels),
      destroy: () => {
        client.disconnect()
        client.stream?.destroy()
      },
      ref: () => client.stream?.ref?.(),
      unref: () => client.stream?.unref?.(),
    }
  }

  /** Logs in, selects the database and names the connection, in one round trip. Rejects with the client library's error. */
  async #logIn(client: Client, forKeys: boolean): Promise<void> {
    const { username, password, db, connectionName } = this.#login
    const replies: Array<Promise<unknown>> = []
    if (password) {
      const words = username ? [username, password] : [password]
      const reply = client.call('auth', ...words).catch((error: Error) => {
        if (!needsNone(error)) throw error
      })
      replies.push(reply)
    }
    if (forKeys && Number(db ?? 0) !== 0) replies.push(client.call('select', String(db)))
    // A user who may not give a name has none.
    if (connectionName) replies.push(client.call('client', 'setname', connectionName).catch(() => {}))
    await Promise.all(replies)
  }
}

/** Whether the server has no password, although one is given. ioredis itself goes on then. */
function needsNone(error: Error): boolean {
  return /without any password configured for the default user|no password is set/.test(error.message)
}

/** The options of the application's client, and the servers that it connects to. */
export function fromIoredis(client: unknown): Source | undefined {
  const one = client as Partial<Client> & { startupNodes?: unknown; isCluster?: boolean }
  if (one.isCluster && Array.isArray(one.startupNodes)) return fromCluster(one as unknown as ClusterLike)
  const options = one.options as RedisOptions | undefined
  // A client of node-redis has no status.
  if (typeof one.call !== 'function' || typeof one.status !== 'string' || options === undefined) return undefined
  const { sentinels, name } = options
  const target: Target = { nodes: [{ host: options.host ?? '127.0.0.1', port: options.port ?? 6379 }], tls: false, db: options.db ?? 0 }
  if (sentinels?.length) {
    target.nodes = sentinels.map(({ host, port }) => ({ host: host ?? '127.0.0.1', port: port ?? 26379 }))
    target.service = name ?? 'mymaster'
  } else if (options.path) {
    target.nodes = []
    target.path = options.path
  }
  const driver = new IoredisDriver((own) => (one as Client).duplicate(own), options)
  return { driver: async () => driver, target }
}

interface ClusterLike {
  startupNodes: Array<string | number | { host?: string; port?: number }>
  options: { redisOptions?: RedisOptions }
}

function fromCluster(cluster: ClusterLike): Source {
  const nodes = cluster.startupNodes.map((node): Node => {
    if (typeof node === 'number') return { host: '127.0.0.1', port: node }
    if (typeof node === 'object') return { host: node.host ?? '127.0.0.1', port: node.port ?? 6379 }
    const url = new URL(node.includes('://') ? node : `redis://${node}`)
    return { host: url.hostname, port: Number(url.port || 6379) }
  })
  return {
    driver: async () => new IoredisDriver(await loadIoredis(), cluster.options.redisOptions ?? {}),
    target: { nodes, tls: false, db: 0 },
  }
}

async function loadIoredis(): Promise<Make> {
  const { Redis } = await import('ioredis')
  return (options) => new Redis(options)
}

/** A driver for a URL. */
export async function ioredisFor(target: Target, name: string | undefined, tls: object | undefined): Promise<Driver> {
  const { username, password, db } = target
  const options: RedisOptions = { username, password, db, connectionName: name }
  if (target.tls) options.tls = { ...tls }
  return new IoredisDriver(await loadIoredis(), options)
}
