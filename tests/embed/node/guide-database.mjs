// The test with a database of a shared server that guide/testing.md shows. Here this file starts the server.
import assert from 'node:assert/strict'
import { after, afterEach, before, beforeEach, test } from 'node:test'
import { startForRun, useDatabase } from 'portcullis-lock/testing'

await startForRun()
const database = useDatabase({ before, beforeEach, afterEach, after })

test('each file has the lock of this name to itself', async () => {
  const grant = await database.locks().lock('report')
  assert.equal(await database.client().exists('report'), 1)
  await grant.release()
})
