/** Hooks for Vitest, Jest and node:test. */
import { type DatabaseOptions, PortcullisDatabase } from './database.js'
import type { TestScope } from './scope.js'
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

/** Options of all hooks. */
export interface LeakOptions {
  /** Patterns of the plain keys that are locks, for the leak check. Otherwise their names tell, such as `lock:a`. */
  lockKeys?: readonly string[]
}

/** Options of `useServer`. */
export interface HookOptions extends ServerOptions, LeakOptions {}

/** Options of `useDatabase`. */
export interface DatabaseHookOptions extends DatabaseOptions, LeakOptions {}

/**
 * Starts a server before the tests of a file, resets it before each, fails a test that leaves locks held, and ends it after all. Test
 * files that run at the same time have servers of their own.
 *
 * @param hooks Of the test runner: `useServer({ before, beforeEach, afterEach, after })` for node:test,
 *   `useServer({ beforeAll, beforeEach, afterEach, afterAll })` for Vitest; Jest's are global, and need not be given.
 * @returns The server, from the first hook on.
 */
export function useServer(hooks: Hooks = globalHooks(), options: HookOptions = {}): PortcullisServer {
  return use('useServer', hooks, options, () => PortcullisServer.create(options), (server) => server.stop())
}

/**
 * Claims a database of the server that all test files of the run share, before the tests of a file. Empties it before each test, fails a
 * test that leaves locks held, and gives it back after all. The server is that of `portcullis-lock/testing/global-setup`, or of the
 * environment variable PORTCULLIS_TEST_URL. Its clock and faults are not to be had: they would change the tests of other workers.
 *
 * @param hooks As of `useServer`.
 * @returns The database, from the first hook on.
 */
export function useDatabase(hooks: Hooks = globalHooks(), options: DatabaseHookOptions = {}): PortcullisDatabase {
  return use('useDatabase', hooks, options, () => PortcullisDatabase.claim(options), (database) => database.release())
}

function globalHooks(): Hooks {
  return globalThis as unknown as Hooks
}

function use<T extends TestScope>(name: string, hooks: Hooks, { lockKeys = [] }: LeakOptions, begin: () => Promise<T>, end: (scope: T) => unknown): T {
  const before = hooks.beforeAll ?? hooks.before
  const after = hooks.afterAll ?? hooks.after
  if (!before || !after) {
    throw new TypeError(`${name} needs the hooks of the test runner: beforeAll, beforeEach, afterEach and afterAll, or node:test's before and after`)
  }
  let scope: T | undefined
  before(async () => {
    scope = await begin()
  })
  hooks.beforeEach(() => scope?.reset())
  hooks.afterEach(() => scope?.endTest(...lockKeys))
  after(() => scope && end(scope))
  return new Proxy({} as T, {
    get: (_, property) => {
      if (!scope) throw new Error('the server starts in the first hook: use it in tests and hooks')
      const value: unknown = Reflect.get(scope, property, scope)
      return typeof value === 'function' ? value.bind(scope) : value
    },
  })
}
