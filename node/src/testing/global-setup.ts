/**
 * One server for all test files: the module for `globalSetup` of Vitest and Jest, and for `--test-global-setup` of node:test.
 *
 * Vitest calls what the function resolves to at the end of the run. Jest does not: the server ends with Jest's process.
 */
import { startForRun } from './run.js'

export default function setup(): Promise<() => Promise<void>> {
  return startForRun()
}

let stop: (() => Promise<void>) | undefined

/** For node:test. */
export async function globalSetup(): Promise<void> {
  stop = await startForRun()
}

/** For node:test. */
export async function globalTeardown(): Promise<void> {
  await stop?.()
}
