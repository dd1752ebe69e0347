/**
 * A Portcullis server for tests, whose clock the test moves and which makes requests go wrong. Hooks for Vitest, Jest and node:test.
 *
 * Hooks and clock work under fake timers: they use the real ones.
 */
export type { Clock, FakeTimers } from './clock.js'
export { PortcullisDatabase } from './database.js'
export type { DatabaseOptions } from './database.js'
export { useDatabase, useServer } from './hooks.js'
export type { DatabaseHookOptions, HookOptions, Hooks } from './hooks.js'
export type { StartOptions } from './process.js'
export { startForRun } from './run.js'
export type { IoredisClient, NodeRedisClient, TestScope } from './scope.js'
export { PortcullisServer } from './server.js'
export type { FaultOptions, ServerOptions } from './server.js'
