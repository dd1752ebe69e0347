// The test with fake timers that guide/testing.md shows.
import assert from 'node:assert/strict'
import { after, afterEach, before, beforeEach, mock, test } from 'node:test'
import { useServer } from 'portcullis-lock/testing'

const server = useServer({ before, beforeEach, afterEach, after })

test('the application and the server have one time', async () => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'], now: Date.now() })
  await server.clock.follow(mock.timers)
  const grant = await server.locks().lock('report', { lease: 30_000 })
  let reminded = false
  setTimeout(() => (reminded = true), 3_600_000)

  await server.clock.advance(3_600_000)

  assert.ok(reminded)
  assert.ok(await grant.check())
  await grant.release()
  mock.timers.reset()
})
