// What guide/javascript.md shows first, against a server at the URL in REDIS_URL; then the same over both client libraries.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import Redis from 'ioredis'
import { createClient } from 'redis'
import { PortcullisServer } from 'portcullis-lock/testing'

import { connect } from 'portcullis-lock'

let server
before(async () => {
  server = await PortcullisServer.create()
  process.env.REDIS_URL = server.url
})
after(() => server.stop())

const written = []
const writeOrder = async (order) => written.push(order)

test('a lock in a minute', async () => {
const locks = connect(process.env.REDIS_URL)

await locks.withLock('order:42', { lease: 30_000, wait: 5000 }, async (grant, signal) => {
  await writeOrder({ id: 42, token: grant.token, signal })
})
await locks.close()

  assert.equal(written[0].id, 42)
})

test('over a client that the application has', async () => {
const redis = new Redis(process.env.REDIS_URL)
const overIoredis = connect(redis)

const client = createClient({ url: process.env.REDIS_URL })
const overNodeRedis = connect(client)

  for (const locks of [overIoredis, overNodeRedis]) {
    await locks.withLock('order:42', {}, (grant) => assert.ok(grant.token > 0))
    await locks.close()
  }
  redis.disconnect()
})
