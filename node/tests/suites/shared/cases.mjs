// Two test files that run at the same time, on one server with a database for each: both hold the lock of the same name together.
import { equal, ok, throws } from 'node:assert/strict'
import Redis from 'ioredis'

// Database 0 is where both files meet.
async function meet(database, own, other) {
  const hall = new Redis(process.env.PORTCULLIS_TEST_URL)
  try {
    await hall.rpush(other, database.db)
    const [, db] = (await hall.blpop(own, 60)) ?? []
    return Number(db)
  } finally {
    hall.disconnect()
  }
}

export const cases = (own, other) => ({
  async 'both files hold the lock at the same time'(database) {
    const grant = await database.locks().lock('same')
    const client = database.client()
    await client.set('file', own)
    const db = await meet(database, own, other)
    ok(db > 0 && db !== database.db, `${db}`)
    await database.reset()
    equal(await grant.check(), false)
    equal(await meet(database, own, other), db)
    await client.set('file', own)
    equal(await client.get('file'), own)
    grant.release().catch(() => {})
  },
  async 'nothing is left of the test before'(database) {
    equal(await database.client().dbsize(), 0)
    throws(() => database.clock, /calls useServer/)
  },
})
