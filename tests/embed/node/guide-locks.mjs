// The snippets of guide/javascript.md about waits, loss and the other kinds of locks.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { after, afterEach, before, beforeEach, test } from 'node:test'
import { DeadlockError, NotAcquiredError, NotHeldError, StaleTokenError } from 'portcullis-lock'
import { useServer } from 'portcullis-lock/testing'

const server = useServer({ before, beforeEach, afterEach, after })
let locks
beforeEach(() => (locks = server.locks()))

test('acquire and release', async () => {
const grant = await locks.lock('report', { lease: 30_000, wait: 5000 })
try {
  console.log(grant.token, grant.remaining())
} finally {
  await grant.release()
}
})

test('a lock that is not granted', async () => {
  const holder = await locks.lock('report')
const grant = await locks.tryLock('report')
if (grant === null) console.log('another process is making the report')

try {
  await locks.lock('report', { wait: 100 })
} catch (error) {
  if (!(error instanceof NotAcquiredError)) throw error
  console.log(error.message, error.holders[0].owner)
}
  assert.equal(grant, null)
  await holder.release()
})

test('a wait that is aborted', async () => {
  const holder = await locks.lock('report')
const impatient = AbortSignal.timeout(200)
try {
  await locks.lock('report', { wait: Infinity, signal: impatient })
} catch (error) {
  assert.equal(error, impatient.reason)
}
  await server.untilBlocked(0)
  await holder.release()
})

test('a lock that is lost', async () => {
  const work = async ({ signal }) => {
    if (!signal.aborted) await once(signal, 'abort')
    throw signal.reason
  }
const grant = await locks.lock('report', { lease: 300 })
grant.on('lost', (error) => console.log(`stop: ${error.cause}`))

await server.order('DEL', 'report')
await assert.rejects(work({ signal: grant.signal }), NotHeldError)
await assert.rejects(grant.release(), NotHeldError)
})

test('other kinds', async () => {
const both = await locks.all(['account:1', 'account:2'], { wait: 1000 })
await both.release()

const reader = await locks.lock('catalogue', { shared: true })
await reader.release()

const printer = await locks.semaphore('printers', 3).acquire({ wait: 1000 })
await printer.release()

const parts = locks.latch('parts:7')
await parts.set(2)
const complete = parts.wait({ wait: 10_000 })
await parts.down(2)
assert.equal(await complete, true)

const { limited, retryAfter } = await locks.throttle('api:ann', { maxBurst: 4, count: 60, period: 60_000 })
assert.deepEqual([limited, retryAfter], [false, null])
})

test('a guard', async () => {
  const grant = await locks.lock('ledger')
  const write = () => {}
await locks.guard('ledger:writes').write(grant.token)
await write()
  await grant.release()
  await assert.rejects(locks.guard('ledger:writes').write(grant.token - 1), StaleTokenError)
})

test('a deadlock', async () => {
  const [ann, bob] = [await locks.lock('a', { owner: 'ann' }), await locks.lock('b', { owner: 'bob' })]
  const waits = locks.lock('a', { owner: 'bob', wait: 5000 })
  await server.untilBlocked(1)
  await assert.rejects(locks.lock('b', { owner: 'ann', wait: 5000 }), DeadlockError)
  await ann.release()
  await (await waits).release()
  await bob.release()
})
