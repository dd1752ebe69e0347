// Losses that the server tells at once. All leases are so long that no renewal sees one.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { NotHeldError } from 'portcullis-lock'
import { atMost, locks, locksOf, server, sleep, useServer, workers } from './setup.mjs'

useServer({ timeout: 200 })

const lease = 300_000
const channels = () => server.order('PUBSUB', 'CHANNELS', '__portcullis__:lock-lost:*')
const until = async (holds) => {
  for (const end = performance.now() + 10_000; !(await holds()); await sleep(2)) assert.ok(performance.now() < end, `not in time: ${holds}`)
}
const lossOf = async (grant) => {
  const error = await Promise.race([grant.lost, atMost(5000)])
  assert.ok(error instanceof NotHeldError, 'the loss is not heard')
  assert.ok(grant.isLost && grant.signal.aborted)
  await assert.rejects(grant.release(), NotHeldError)
  return error
}

test('a lock that is broken, deleted, or over', async () => {
  const grant = await locks.lock('a', { lease })
  await until(async () => (await channels()).length === 1)
  await server.order('LOCK.BREAK', 'a', 'TOKEN', String(grant.token), 'REASON', 'stuck')
  assert.match((await lossOf(grant)).cause, /broken.*stuck/)

  const deleted = await locks.all(['b', 'c'], { lease })
  await server.order('DEL', 'c')
  assert.match((await lossOf(deleted)).cause, /deleted/)

  // The server's clock alone goes on, and by this process's the lease has hardly begun.
  const permit = await locks.semaphore('s', 2).acquire({ lease })
  await server.order('CLOCK', 'ADVANCE', String(lease))
  assert.match((await lossOf(permit)).cause, /lease ended/)
})

test('a session, and a shared lock of a named owner', async () => {
  const session = await locks.lock('a', { lease, session: { grace: 5000 } })
  const shared = await locks.lock('b', { lease, shared: true, owner: 'ann' })
  await until(async () => (await channels()).length === 2)
  await server.order('DEL', 'a')
  await server.order('DEL', 'b')
  assert.match((await lossOf(session)).cause, /deleted/)
  assert.match((await lossOf(shared)).cause, /deleted/)
})

test('a thousand locks at once', async () => {
  const grants = await workers(1000, (number) => locks.lock(`a:${number}`, { lease }))
  await until(async () => (await channels()).length >= 1)
  await sleep(50)
  await server.order('FLUSHALL')
  await until(async () => grants.every((grant) => grant.isLost))
})

test('a grant outlives the connection that acquired it', async () => {
  const grant = await locks.lock('a', { lease })
  await until(async () => (await channels()).length === 1)
  await server.order('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')
  await server.order('DEL', 'a')
  await lossOf(grant)
  // Its channel goes with it.
  await until(async () => (await channels()).length === 0)
})

/** Closes the connection that acquired the grant, by a wait on it that is aborted. Returns its number. */
const closeConnectionOf = async (grant) => {
  const busy = locksOf(server.url)
  const holder = await busy.lock('busy')
  const [{ client }] = (await busy.info(grant.name)).holders
  const isOpen = async () => {
    const [now] = (await busy.info(grant.name)).holders
    return now.client === client && now.gone === null
  }
  // The wait may be on another connection, if two requests met. That one is closed, too.
  for (let attempt = 0; attempt === 0 || (await isOpen()); attempt++) {
    assert.ok(attempt < 100, 'no wait is on the connection of the grant')
    const controller = new AbortController()
    const wait = assert.rejects(locks.lock('busy', { wait: Infinity, signal: controller.signal }), /enough/)
    await server.untilBlocked(1)
    controller.abort(new Error('enough'))
    await wait
    await server.untilBlocked(0)
  }
  await holder.release()
  await busy.close()
  return client
}

const kinds = {
  'a lock': (locks) => locks.lock('a', { lease }),
  'a lock that does not renew itself': (locks) => locks.lock('a', { lease, renew: false }),
  'a lock of a named owner': (locks) => locks.lock('a', { lease, owner: 'ann' }),
  'a shared lock of a named owner': (locks) => locks.lock('a', { lease, owner: 'ann', shared: true }),
  'several locks': (locks) => locks.all(['a', 'b'], { lease }),
  'several locks that do not renew themselves': (locks) => locks.all(['a', 'b'], { lease, renew: false }),
  permits: (locks) => locks.semaphore('a', 3).acquire({ lease, permits: 2 }),
}
for (const [kind, acquire] of Object.entries(kinds)) {
  test(`${kind}, whose connection closes by another wait, is not shown as gone`, async () => {
    const grant = await acquire(locks)
    await until(async () => (await channels()).length === 1)
    await server.clock.freeze()
    await server.order('CLOCK', 'ADVANCE', '1000')
    const left = await server.order('PTTL', 'a')
    const [{ holds }] = (await locks.info('a')).holders
    const client = await closeConnectionOf(grant)
    for (const [at, name] of grant.names.entries()) {
      const holder = async () => (await locks.info(name)).holders[0]
      await until(async () => (await holder()).client !== client && (await holder()).gone === null)
      assert.deepEqual([(await holder()).token, (await holder()).holds], [grant.tokens[at], holds])
    }
    if (kind.includes('not renew')) assert.equal(await server.order('PTTL', 'a'), left)
    assert.ok(!grant.isLost && (await grant.check()))
    // Its loss is told on the channel of the connection that it has now.
    await until(async () => (await channels()).length === 1 && !(await channels())[0].endsWith(`:${client}`))
    await server.order('DEL', 'a')
    assert.match((await lossOf(grant)).cause, /deleted/)
    await until(async () => (await server.leakedLocks()).length === 0)
  })
}

test('a lock of a named owner that does not renew itself stays with its connection, and its loss is heard', async () => {
  const grant = await locks.lock('a', { lease, owner: 'ann', renew: false })
  await until(async () => (await channels()).length === 1)
  await closeConnectionOf(grant)
  await sleep(100)
  await server.order('DEL', 'a')
  assert.match((await lossOf(grant)).cause, /deleted/)
})

test('a thousand locks whose connections all break', async () => {
  const grants = await workers(1000, (number) => locks.lock(`a:${number}`, { lease, renew: number % 2 === 0 }))
  await until(async () => (await channels()).length >= 1)
  await server.order('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')
  const goneOf = async (grant) => (await locks.info(grant.name)).holders[0].gone
  await until(async () => (await workers(1000, (number) => goneOf(grants[number]))).every((gone) => gone === null))
  await server.order('FLUSHALL')
  await until(async () => grants.every((grant) => grant.isLost))
})

test('a grant that ends while its connection is away', async () => {
  const grant = await locks.lock('a', { lease, renew: false })
  const released = await locks.lock('b', { lease })
  await until(async () => (await channels()).length === 1)
  // Everything breaks at once, and the message finds nobody.
  await Promise.all([
    server.order('CLIENT', 'KILL', 'TYPE', 'pubsub'),
    server.order('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes'),
    server.order('DEL', 'a'),
    server.order('LOCK.ACQUIRE', 'a', 'somebody', lease),
  ])
  await released.release()
  assert.match((await lossOf(grant)).cause, /held by 'somebody'|deleted/)
  server.leaksLocks()
})

test('a subscription that is never confirmed is made again', async () => {
  await server.faults.add('deaf', 'DROP', { on: 'subscribe', times: 1 })
  const grant = await locks.lock('a', { lease })
  await until(async () => (await server.faults.fired('deaf')) === 1)
  await until(async () => (await channels()).length === 1)
  await server.order('DEL', 'a')
  await lossOf(grant)
})

test('the confirmation of a subscription is lost', async () => {
  await server.faults.add('deaf', 'DROP-REPLY', { on: 'subscribe', times: 1 })
  const grant = await locks.lock('a', { lease })
  await until(async () => (await server.faults.fired('deaf')) === 1)
  await server.order('DEL', 'a')
  await lossOf(grant)
})

test('the connection that hears is opened again', async () => {
  const grant = await locks.lock('a', { lease })
  await until(async () => (await channels()).length === 1)
  await server.order('CLIENT', 'KILL', 'TYPE', 'pubsub')
  await until(async () => (await channels()).length === 0)
  await until(async () => (await channels()).length === 1)
  await server.order('DEL', 'a')
  await lossOf(grant)
})

test('a connection that breaks while nothing is held is opened for the next lock', async () => {
  const grant = await locks.lock('a', { lease })
  await until(async () => (await channels()).length === 1)
  await grant.release()
  await server.order('CLIENT', 'KILL', 'TYPE', 'pubsub')
  await sleep(300) // The attempt to open it again has found nothing to hear of.
  assert.deepEqual(await channels(), [])
  const next = await locks.lock('a', { lease })
  // One for each connection that acquires: it may be another one.
  await until(async () => (await channels()).length >= 1)
  await server.order('DEL', 'a')
  await lossOf(next)
})

test('a lock that does not renew itself', async () => {
  const grant = await locks.lock('a', { lease, renew: false })
  await until(async () => (await channels()).length === 1)
  await server.clock.freeze()
  const left = await server.order('PTTL', 'a')
  await server.order('CLOCK', 'ADVANCE', '1000')
  const [channel] = await channels()
  await server.order('PUBLISH', channel, `${grant.token} broken a`)
  await sleep(50)
  assert.equal(await server.order('PTTL', 'a'), left - 1000)
  await server.order('DEL', 'a')
  assert.match((await lossOf(grant)).cause, /deleted/)
})

test('a lock whose first reply was lost', async () => {
  const first = await locks.lock('b', { lease })
  await until(async () => (await channels()).length === 1)
  const [old] = await channels()
  await server.faults.add('lost', 'DROP-REPLY', { on: 'lock.acquire', times: 1 })
  const grant = await locks.lock('a', { lease })
  assert.equal(await server.faults.fired('lost'), 1)
  // Both have other connections now.
  await until(async () => (await channels()).length > 0 && !(await channels()).includes(old))
  await server.order('DEL', 'a')
  await lossOf(grant)
  await first.release()
})

test('a forged message', async () => {
  const grant = await locks.lock('a', { lease })
  await until(async () => (await channels()).length === 1)
  const [channel] = await channels()
  await server.order('PUBLISH', channel, `${grant.token} broken a`)
  await server.order('PUBLISH', channel, 'nonsense')
  await sleep(50)
  assert.ok(!grant.isLost && (await grant.check()))
  await grant.release()
})

test('a user who may not subscribe', async () => {
  await server.order('ACL', 'SETUSER', 'mute', 'on', '>secret', '~*', '+@all', 'resetchannels')
  const mute = locksOf(server.url.replace('//', '//mute:secret@'))
  try {
    const grant = await mute.lock('a', { lease: 300 })
    await server.order('DEL', 'a')
    // The next renewal sees it.
    await lossOf(grant)
    assert.deepEqual(await channels(), [])
  } finally {
    await mute.close()
    await server.order('ACL', 'DELUSER', 'mute')
  }
})

test('close() ends the connection that hears', async () => {
  const grant = await locks.lock('a', { lease })
  await until(async () => (await channels()).length === 1)
  await grant.release()
  await locks.close()
  await until(async () => (await channels()).length === 0)
})
