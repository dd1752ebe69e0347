/**
 * A Portcullis server for tests, whose clock the test moves and which makes requests go wrong. Hooks for Vitest, Jest and node:test.
 *
 * Hooks and clock work under fake timers: they use the real ones.
 */
export type { Clock, FakeTimers } from './clock.js'
export { useServer } from './hooks.js'
export type { HookOptions, Hooks } from './hooks.js'
export type { StartOptions } from './process.js'
export { PortcullisServer } from './server.js'
export type { FaultOptions, IoredisClient, NodeRedisClient, ServerOptions } from './server.js'
