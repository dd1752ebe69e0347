/** One database of a server that several test files use at the same time. */
import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { parseUrl } from '../driver/address.js'
import { clients, unblock } from './clients.js'
import { Control } from './control.js'
import { type Address, type IoredisOptions, TestScope } from './scope.js'

/** The variable with the URL of the server that all test files of a run share. */
export const URL_VARIABLE = 'PORTCULLIS_TEST_URL'

/** Options of a database. */
export interface DatabaseOptions {
  /** URL of the server; otherwise what the environment variable PORTCULLIS_TEST_URL has. */
  url?: string
  /** Options of all clients that `client()` makes. */
  client?: IoredisOptions
}

/** Locks in database 0 say which databases are in use. They end with the connection of the hooks, and so with the process. */
const CLAIM = 'portcullis-lock:database:'
const CLAIM_LEASE_MS = 7 * 24 * 3600 * 1000

/**
 * A database of a shared server, of which nobody else has the same at the same time. `PortcullisDatabase.claim()` claims one, and
 * `release()` ends the claim.
 *
 * Clock, faults, restarts, scripts and functions belong to the server, so to all who share it: there is no `clock` here.
 */
export class PortcullisDatabase extends TestScope {
  #releasing: Promise<void> | undefined

  private constructor(address: Address, control: Control, options: DatabaseOptions) {
    super(address, control, options.client)
  }

  /**
   * Claims a database that nobody uses, from 1 on; the worker's own number first, if the test runner numbers its workers.
   *
   * @throws Error if there is no server, which says how to start one; or if all its databases are in use.
   */
  static async claim(options: DatabaseOptions = {}): Promise<PortcullisDatabase> {
    const url = options.url ?? process.env[URL_VARIABLE]
    if (!url) {
      throw new Error(
        `no server runs for all test files: ${URL_VARIABLE} is not set. Put 'portcullis-lock/testing/global-setup' into the globalSetup ` +
          'of Vitest or Jest; or call useServer, which starts one for each test file',
      )
    }
    const target = parseUrl(url)
    const [node] = target.nodes
    if (!node || target.nodes.length > 1 || target.service !== undefined || target.tls) {
      throw new TypeError(`${URL_VARIABLE} has to be the URL of one server without TLS: redis://host:port`)
    }
    const { username, password } = target
    // After a break, the database may be somebody else's.
    const control = new Control(node.host, node.port, false)
    try {
      if (password !== undefined) await control.call('AUTH', username ?? 'default', password)
      const db = await claimIn(control)
      await control.call('SELECT', db)
      const database = new PortcullisDatabase({ ...node, db, username, password }, control, options)
      await database.#closeOthers()
      return database
    } catch (error) {
      control.close()
      throw error
    }
  }

  /** Not here: the clock is the server's. It throws an Error that says so. */
  get clock(): never {
    throw this.#serverOnly('clock')
  }

  /** Not here: faults are the server's. It throws an Error that says so. */
  get faults(): never {
    throw this.#serverOnly('fault rules')
  }

  /** Empties the database. A client of it that is still blocked is unblocked. */
  override async reset(): Promise<void> {
    await super.reset()
    await unblock(this.control, await this.#others())
    await this.order('FLUSHDB')
  }

  /** Ends the claim: closes the clients of the test, and all others of the database. May be called twice. */
  release(): Promise<void> {
    return (this.#releasing ??= this.#release())
  }

  async #release(): Promise<void> {
    await this.closeClients()
    await this.#closeOthers()
    this.control.close()
  }

  protected async blocked(): Promise<number> {
    return (await this.#others()).filter((client) => client.isBlocked).length
  }

  protected override async leaks(patterns: readonly string[] = []) {
    return (await super.leaks(patterns)).filter((leak) => leak.db === this.db)
  }

  /** The clients of this database but the hooks' connection. */
  async #others() {
    return (await clients(this.control)).filter((client) => client.db === this.db)
  }

  async #closeOthers(): Promise<void> {
    for (const { id } of await this.#others()) await this.order('CLIENT', 'KILL', 'ID', id)
  }

  #serverOnly(what: string): Error {
    return new Error(`all workers share this server and its ${what}: a test that needs them calls useServer, which starts a server for its file`)
  }
}

async function claimIn(control: Control): Promise<number> {
  const count = Number(((await control.call('CONFIG', 'GET', 'databases')) as string[])[1])
  // Vitest's and Jest's workers have numbers from 1 on.
  const first = Number(process.env['VITEST_POOL_ID'] ?? process.env['JEST_WORKER_ID'] ?? 1)
  // An owner of its own for each claim: the same owner would be granted the same database again.
  const owner = `process ${process.pid} of ${hostname()}, ${randomUUID()}`
  for (let step = 0; step < count - 1; step++) {
    const db = ((first - 1 + step) % (count - 1)) + 1
    if (await control.call('LOCK.ACQUIRE', `${CLAIM}${db}`, owner, CLAIM_LEASE_MS, 'SESSION')) return db
  }
  throw new Error(`all ${count - 1} databases of the server from 1 on are in use: start it with more \`--databases\``)
}
