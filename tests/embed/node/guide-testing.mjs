// The tests that guide/testing.md and guide/javascript.md show: `node --test guide-testing.mjs`.
import assert from 'node:assert/strict'
import { after, afterEach, before, beforeEach, test } from 'node:test'
import { useServer } from 'portcullis-lock/testing'

const server = useServer({ before, beforeEach, afterEach, after })

test('another client gets the lock when its lease is over', async () => {
  const client = server.client()
  await server.clock.freeze()
  await client.set('lock:a', 'alice', 'PX', 10_000, 'NX')
  await server.clock.advance(10_000)
  await server.faults.add('lost', 'DROP-REPLY', { on: 'set', client: 'worker-*', times: 1 })
  assert.equal(await client.set('lock:a', 'bob', 'PX', 10_000, 'NX'), 'OK')
  await client.del('lock:a')
})

test('work stops when the lease is over', async () => {
  await server.clock.freeze()
  const locks = server.locks()
  const grant = await locks.lock('report', { lease: 30_000, renew: false })
  await server.clock.advance(30_000)
  assert.ok(grant.signal.aborted)
  await assert.rejects(grant.release(), { name: 'NotHeldError' })
})
