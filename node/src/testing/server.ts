/** A server for tests: its process, its clock and its faults. */
import { clients, unblock } from './clients.js'
import { Clock } from './clock.js'
import { Control, pairs } from './control.js'
import { type StartOptions, type Started, startProcess } from './process.js'
import { type IoredisOptions, TestScope } from './scope.js'

/** Options of a server. */
export interface ServerOptions extends StartOptions {
  /** Options of all clients that `client()` makes. */
  client?: IoredisOptions
  /** As redis-memory-server has them: port, ip, and further flags. */
  instance?: { port?: number; ip?: string; args?: readonly string[] }
}

/** Which requests a fault hits, and how often. */
export interface FaultOptions {
  /** Commands, such as `set` or `lock.*`. */
  on?: string
  /** Clients by name or address, such as `worker-*`. */
  client?: string
  /** From 0 to 1. */
  probability?: number
  times?: number
  /** Number of requests that pass before the first fault. */
  after?: number
}

/** A server in test mode. `PortcullisServer.create()` starts one, and `stop()` ends it. */
export class PortcullisServer extends TestScope {
  readonly pid: number
  readonly clock: Clock
  readonly #started: Started

  private constructor(started: Started, options: ServerOptions) {
    const { host, port, child } = started
    super({ host, port, db: 0 }, new Control(host, port), options.client)
    this.pid = child.pid as number
    this.#started = started
    this.clock = new Clock(this.control, {
      moved: () => this.#noticeLosses(),
      shortestLease: () => Math.min(...this.grants().map((grant) => grant.lease)),
    })
  }

  /**
   * Starts a server.
   *
   * @throws Error if there is no program, which says how to get it; or if the program does not start.
   */
  static async create(options: ServerOptions = {}): Promise<PortcullisServer> {
    const { instance = {} } = options
    const flags = [...(options.flags ?? []), ...(instance.args ?? [])]
    const started = await startProcess({ ...options, port: options.port ?? instance.port, ip: options.ip ?? instance.ip, flags })
    return new PortcullisServer(started, options)
  }

  /** The host, as redis-memory-server gives it. */
  async getHost(): Promise<string> {
    return this.host
  }

  /** The same as the host, as redis-memory-server gives it. */
  async getIp(): Promise<string> {
    return this.host
  }

  /** The port, as redis-memory-server gives it. */
  async getPort(): Promise<number> {
    return this.port
  }

  readonly faults = {
    /** Adds a rule. `what` in the words of FAULT ADD: 'DROP-REPLY', 'DELAY 500', or ['ERROR', 'OOM no room']. */
    add: async (name: string, what: string | readonly string[], options: FaultOptions = {}): Promise<void> => {
      const words = typeof what === 'string' ? what.split(' ') : what
      await this.order('FAULT', 'ADD', name, ...words, ...Object.entries(options).flatMap(([option, value]) => [option.toUpperCase(), value]))
    },
    /** Removes a rule. */
    remove: async (name: string): Promise<void> => void (await this.order('FAULT', 'DEL', name)),
    /** Removes all rules. */
    reset: async (): Promise<void> => void (await this.order('FAULT', 'RESET')),
    /** Restarts the random sequence from this seed. */
    seed: async (seed: number): Promise<void> => void (await this.order('FAULT', 'SEED', seed)),
    /** How often a rule has fired. */
    fired: async (name: string): Promise<number> => {
      const rules = (await this.order('FAULT', 'LIST')) as unknown[]
      return Number(rules.map(pairs).find((rule) => rule['name'] === name)?.['fired'] ?? 0)
    },
  }

  /**
   * Resets the server: deletes data, scripts, functions and faults, and lets the clock run at the real time. Configuration, users and
   * connections stay. A client that is still blocked is unblocked, and a connection whose request is delayed by a fault is closed.
   */
  override async reset(): Promise<void> {
    await super.reset()
    this.clock.unfollow()
    await this.faults.reset()
    if ((await this.blocked()) > 0) await unblock(this.control, await clients(this.control))
    const orders = ['FAULT JOURNAL 0', 'CLOCK RESUME', `CLOCK SET ${realDate()}`, 'FLUSHALL', 'SCRIPT FLUSH', 'FUNCTION FLUSH']
    await Promise.all(orders.map((order) => this.order(...order.split(' '))))
  }

  /**
   * Restarts the server without its data. With `lose`, simulates a failover that loses that many last writes, if `journal` kept them;
   * resolves with their number. Connections are closed.
   */
  async restart({ lose }: { lose?: number } = {}): Promise<number | undefined> {
    // A first request makes sure that there is a connection to be closed.
    await this.clock.info()
    const closed = this.control.closed()
    const lost = await this.order('FAULT', 'RESTART', ...(lose === undefined ? [] : ['LOSE', lose]))
    await closed
    return lose === undefined ? undefined : Number(lost)
  }

  /** Keeps this many last writes from now on, so that `restart` can lose them. */
  async journal(writes: number): Promise<void> {
    await this.order('FAULT', 'JOURNAL', writes)
  }

  protected async blocked(): Promise<number> {
    return (await this.clock.info())['blocked-clients']
  }

  override async endTest(...patterns: string[]): Promise<void> {
    this.clock.unfollow()
    await super.endTest(...patterns)
  }

  /** Ends the process, for certain. Resolves to true, as redis-memory-server does. */
  async stop(): Promise<boolean> {
    this.clock.unfollow()
    this.#started.child.ref()
    this.#started.child.kill('SIGKILL')
    await this.#started.ended
    await this.closeClients(true)
    this.control.close()
    return true
  }

  /** Lets the grants of `locks()` that the server has ended know it. FAULT LEAKS, because no fault can hit it. */
  async #noticeLosses(): Promise<void> {
    const all = this.grants()
    if (all.length === 0) return
    const held = new Set((await this.leaks()).map((leak) => leak.token))
    for (const grant of all) {
      if (!grant.tokens.every((token) => held.has(token))) grant.lose(grant.leaseEnded('the server ended it when the clock moved'))
    }
  }
}

/** The time of the real Date: hooks run after tests with fake ones. */
const RealDate = Date
function realDate(): number {
  return RealDate.now()
}
