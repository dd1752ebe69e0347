// Under Vitest and Jest, whose fake timers fake all that they can.
import { useServer } from 'portcullis-lock/testing'
import { cases } from './timers-cases.mjs'

const runner = process.env.VITEST ? await import('vitest') : globalThis
const timers = process.env.VITEST ? runner.vi : import.meta.jest
const server = useServer(runner)
// Jest fakes process.nextTick by default, on which client libraries rest when they connect.
const options = process.env.VITEST ? undefined : { doNotFake: ['nextTick', 'queueMicrotask', 'setImmediate'] }
const fake = { timers, start: () => timers.useFakeTimers(options), stop: () => timers.useRealTimers() }
for (const [name, run] of Object.entries(cases(fake))) runner.test(name, () => run(server))
