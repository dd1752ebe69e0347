// Databases of one server that several test files use at the same time.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { after, afterEach, before, test } from 'node:test'
import { PortcullisDatabase, PortcullisServer, startForRun } from 'portcullis-lock/testing'
import { sleep } from './setup.mjs'

let server
const claimed = []
before(async () => {
  // Databases 1 and 2 may be claimed.
  server = await PortcullisServer.create({ flags: ['--databases', '3'] })
})
afterEach(async () => {
  for (const database of claimed.splice(0)) await database.release()
  await server.reset()
})
after(() => server.stop())

async function claim(url = server.url) {
  const database = await PortcullisDatabase.claim({ url })
  claimed.push(database)
  return database
}

test('each claim has a database of its own', async () => {
  const [one, two] = [await claim(), await claim()]
  assert.deepEqual([one.db, two.db], [1, 2])
  await assert.rejects(claim(), /all 2 databases of the server from 1 on are in use: start it with more `--databases`/)
  assert.match(one.url, /\/1$/)
  for (const database of [one, two]) {
    const client = database.client()
    await client.set('k', `of ${database.db}`)
    await (await database.nodeRedis()).set('other', database.db)
    await (await database.locks().lock('a')).release()
    assert.deepEqual([await client.get('k'), await client.get('other')], [`of ${database.db}`, `${database.db}`])
  }
  await one.reset()
  assert.deepEqual([await one.order('DBSIZE'), await two.order('DBSIZE')], [0, 2])
})

test('a database is free again after its release', async () => {
  await (await claim()).release()
  assert.equal((await claim()).db, 1)
})

test('the worker’s number comes first', async () => {
  process.env.JEST_WORKER_ID = '2'
  try {
    assert.deepEqual([(await claim()).db, (await claim()).db], [2, 1])
  } finally {
    delete process.env.JEST_WORKER_ID
  }
})

test('a process that is killed leaves its database', async () => {
  const program = "const { PortcullisDatabase } = await import('portcullis-lock/testing'); const { db } = await PortcullisDatabase.claim(); console.log(db); setInterval(() => {}, 1000)"
  const child = spawn(process.execPath, ['--input-type=module', '-e', program], { env: { ...process.env, PORTCULLIS_TEST_URL: server.url }, stdio: ['ignore', 'pipe', 'inherit'] })
  assert.equal(String(await once(child.stdout, 'data')), '1\n')
  const two = await claim()
  assert.equal(two.db, 2)
  child.kill('SIGKILL')
  await once(child, 'exit')
  assert.equal((await claim()).db, 1)
})

test('only the leaks and waits of its own count', async () => {
  const [one, two] = [await claim(), await claim()]
  const locks = two.locks()
  const grant = await locks.lock('a')
  const waits = locks.lock('a', { wait: 20_000 })
  await two.untilBlocked(1)
  await one.untilBlocked(0)
  assert.deepEqual(await one.leakedLocks(), [])
  assert.equal((await two.leakedLocks()).length, 1)
  await one.reset()
  await one.endTest()
  assert.ok(await grant.check())
  await grant.release()
  await (await waits).release()
  await two.client().set('lock:b', 'bob')
  await assert.rejects(two.endTest(), /locks are still held:\n {2}lock:b \(string in database 2\) held by 'bob'/)
})

test('a reset ends the waits of its own', async () => {
  const database = await claim()
  const waits = database.client().blpop('nothing', 0)
  await database.untilBlocked(1)
  await database.reset()
  assert.equal(await waits, null)
})

test('whoever is left in a database is closed', async () => {
  const client = server.client({ db: 1, retryStrategy: null })
  await client.ping()
  const closed = once(client, 'close')
  await claim()
  await closed
})

test('clock and faults are not to be had', async () => {
  const database = await claim()
  assert.throws(() => database.clock, /all workers share this server and its clock: a test that needs them calls useServer/)
  assert.throws(() => database.faults, /all workers share this server and its fault rules/)
})

test('a connection that broke is not replaced: the database may be somebody else’s', async () => {
  const database = await claim()
  await server.order('CLIENT', 'KILL', 'ID', await database.order('CLIENT', 'ID'))
  claimed.pop()
  let error
  for (let left = 200; left > 0 && !/broke, or was closed/.test(error?.message); left--) {
    error = await database.order('PING').catch((error) => error)
    await sleep(1)
  }
  assert.match(error.message, /broke, or was closed/)
})

test('without a server, one error says how to start it', async () => {
  await assert.rejects(PortcullisDatabase.claim(), /PORTCULLIS_TEST_URL is not set. Put 'portcullis-lock\/testing\/global-setup' into the globalSetup/)
  await assert.rejects(claim('redis://127.0.0.1:1,127.0.0.1:2'), TypeError)
})

test('a server with a password, whose URL is set', async () => {
  const secret = await PortcullisServer.create({ flags: ['--requirepass', 'p:ss/wörd'] })
  process.env.PORTCULLIS_TEST_URL = `redis://:${encodeURIComponent('p:ss/wörd')}@${secret.host}:${secret.port}`
  try {
    // It is used, and no other is started.
    const stop = await startForRun({ program: '/nowhere' })
    const database = await PortcullisDatabase.claim()
    await database.client().set('k', 1)
    await (await database.locks().lock('a')).release()
    assert.equal(await (await database.nodeRedis()).get('k'), '1')
    await database.endTest()
    await database.release()
    await stop()
    assert.ok(process.env.PORTCULLIS_TEST_URL)
  } finally {
    delete process.env.PORTCULLIS_TEST_URL
    await secret.stop()
  }
})
