/** Hooks for Vitest, Jest and node:test. */
import { PortcullisServer, type ServerOptions } from './server.js'

type Hook = (work: () => unknown) => unknown

/** The hooks of a test runner: Vitest's and Jest's names, or node:test's. */
export interface Hooks {
  beforeAll?: Hook
  before?: Hook
  beforeEach: Hook
  afterEach: Hook
  afterAll?: Hook
  after?: Hook
}

/** Options of `useServer`. */
export interface HookOptions extends ServerOptions {
  /** Patterns of the plain keys that are locks, for the leak check. Otherwise their names tell, such as `lock:a`. */
  lockKeys?: readonly string[]
}

/**
 * Starts a server before the tests of a file, resets it before each, fails a test that leaves locks held, and ends it after all. Test
 * files that run at the same time have servers of their own.
 *
 * @param hooks Of the test runner: `useServer({ before, beforeEach, afterEach, after })` for node:test,
 *   `useServer({ beforeAll, beforeEach, afterEach, afterAll })` for Vitest; Jest's are global, and need not be given.
 * @returns The server, from the first hook on.
 */
export function useServer(hooks: Hooks = globalThis as unknown as Hooks, options: HookOptions = {}): PortcullisServer {
  const before = hooks.beforeAll ?? hooks.before
  const after = hooks.afterAll ?? hooks.after
  if (!before || !after) {
    throw new TypeError("useServer needs the hooks of the test runner: beforeAll, beforeEach, afterEach and afterAll, or node:test's before and after")
  }
  let server: PortcullisServer | undefined
  before(async () => {
    server = await PortcullisServer.create(options)
  })
  hooks.beforeEach(() => server?.reset())
  hooks.afterEach(() => server?.endTest(...(options.lockKeys ?? [])))
  after(() => server?.stop())
  return new Proxy({} as PortcullisServer, {
    get: (_, name) => {
      if (!server) throw new Error('the server starts in the first hook: use it in tests and hooks')
      const value: unknown = Reflect.get(server, name, server)
      return typeof value === 'function' ? value.bind(server) : value
    },
  })
}
