/**
 * A Portcullis server in a container, for Testcontainers: a test server where no program can be installed, or as the application's
 * image has it. Needs the package testcontainers.
 *
 * The image is what packaging/Containerfile makes. Its entry point is the program.
 */
import type { StartedTestContainer } from 'testcontainers'
import load from './testing/load.cjs'

const { AbstractStartedContainer, GenericContainer, Wait } = load('testcontainers') as typeof import('testcontainers')

const PORT = 6379

/** A container to be started: `await new PortcullisContainer('portcullis').start()`. The server runs in test mode. */
export class PortcullisContainer extends GenericContainer {
  #password: string | undefined
  #flags: readonly string[] = []

  /** @param image Such as `portcullis`, or `registry.example/portcullis:0.1.0`. */
  constructor(image: string) {
    super(image)
    this.withExposedPorts(PORT)
    this.withWaitStrategy(Wait.forLogMessage(/ready to accept connections/))
    this.#setCommand()
  }

  /** The password of the default user. Without one, everybody who reaches the port is let in. */
  withPassword(password: string): this {
    this.#password = password
    return this.#setCommand()
  }

  /** Further flags of `portcullis serve`, such as `'--databases', '64'`. */
  withFlags(...flags: string[]): this {
    this.#flags = flags
    return this.#setCommand()
  }

  override async start(): Promise<StartedPortcullisContainer> {
    return new StartedPortcullisContainer(await super.start(), this.#password)
  }

  #setCommand(): this {
    // Clients come from outside the container, so from other machines as the server sees it.
    const access = this.#password === undefined ? ['--protected-mode', 'no'] : ['--requirepass', this.#password]
    return this.withCommand(['serve', '--test-mode', '--bind', '0.0.0.0', '--port', String(PORT), ...access, ...this.#flags])
  }
}

/** A container that runs. */
export class StartedPortcullisContainer extends AbstractStartedContainer {
  readonly #password: string | undefined

  constructor(container: StartedTestContainer, password: string | undefined) {
    super(container)
    this.#password = password
  }

  /** The port on the host that leads to the server. */
  getPort(): number {
    return this.getMappedPort(PORT)
  }

  /** The password of the default user; an empty text if there is none. */
  getPassword(): string {
    return this.#password ?? ''
  }

  /** The URL for `connect` and for client libraries. */
  getConnectionUrl(): string {
    const login = this.#password === undefined ? '' : `:${encodeURIComponent(this.#password)}@`
    return `redis://${login}${this.getHost()}:${this.getPort()}`
  }
}
