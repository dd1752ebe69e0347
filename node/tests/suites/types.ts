// The types as an application uses them, with `await using`. It is compiled strictly, and then run.
import { type Grant, type Locks, NotAcquiredError, connect } from 'portcullis-lock'
import { PortcullisServer } from 'portcullis-lock/testing'

const server = await PortcullisServer.create()
const locks: Locks = connect(server.url, { timeout: 1000 })
{
  await using grant: Grant = await locks.lock('a', { lease: 1000, wait: Infinity, session: { grace: 500 } })
  const token: number = grant.token
  grant.on('lost', (error) => console.log(error.cause.length))
  const maybe: Grant | null = await locks.tryLock('a')
  console.log(maybe === null && token > 0 ? 'ok 1 - a lock by await using' : 'not ok 1 - a lock by await using')
  const error: unknown = await locks.lock('a').catch((error: unknown) => error)
  const owner: string | undefined = error instanceof NotAcquiredError ? error.holders[0]?.owner : undefined
  console.log(owner === grant.owner ? 'ok 2 - the holder' : 'not ok 2 - the holder')
}
const released = await locks.tryLock('a')
console.log(released ? 'ok 3 - await using released it' : 'not ok 3 - await using released it')
await released?.release()
const length: number = await locks.withLock('a', {}, (grant: Grant, signal: AbortSignal) => (signal.aborted ? 0 : grant.names.length))
// @ts-expect-error A lease is a number of milliseconds.
await locks.lock('a', { lease: '30s' }).catch((error: unknown) => console.log(error instanceof RangeError ? 'ok 4 - a lease is a number' : 'not ok 4 - a lease'))
// @ts-expect-error It may be null.
const never: Grant = await locks.tryLock('a')
await never.release()
console.log(length === 1 ? 'ok 5 - withLock gives what the work gives' : 'not ok 5 - withLock')
await locks.close()
await server.stop()
