// Connections that break, replies that are lost, sessions, and the application's own clients.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { NotHeldError, UnreachableError, connect } from 'portcullis-lock'
import { driver, locks, server, sleep, useServer, Witness, workers } from './setup.mjs'

// Replies that are dropped are missed after this time.
useServer({ timeout: 200, name: 'suite' })

for (const fault of ['DROP', 'DROP-REPLY', 'DELAY-REPLY 400', 'CLOSE', 'CLOSE-AFTER', 'RESET', 'RESET-AFTER', 'DELAY 400']) {
  test(`an acquisition and a release that meet ${fault}`, async () => {
    await server.faults.add('acquire', fault, { on: 'lock.acquire', times: 1 })
    const grant = await locks.lock('a')
    assert.equal((await locks.info('a')).holders[0].holds, 1)
    await server.faults.add('release', fault, { on: 'lock.release', times: 1 })
    await grant.release()
    assert.deepEqual([await server.faults.fired('acquire'), await server.faults.fired('release')], [1, 1])
    // A copy that the server carries out late must not take the lock.
    await sleep(fault.startsWith('DELAY') ? 450 : 0)
    assert.deepEqual(await server.leakedLocks(), [])
  })
}

test('a named owner whose reply is lost has one hold', async () => {
  await server.faults.add('acquire', 'CLOSE-AFTER', { on: 'lock.acquire', times: 1 })
  const grant = await locks.lock('a', { owner: 'ann' })
  assert.equal((await locks.info('a')).holders[0].holds, 1)
  await grant.release()
})

test('more locks than requests are sent at once, from a server that is slow', async () => {
  await server.faults.add('slow', 'DELAY 150', { on: 'lock.acquire' })
  // Each grant is late for its lease, so that each asks how much is left of it.
  const all = await Promise.allSettled(Array.from({ length: 50 }, (_, number) => locks.lock(`slow:${number}`, { lease: 400, renew: false })))
  assert.ok(all.some(({ status }) => status === 'fulfilled'))
  for (const { reason } of all) assert.ok(reason === undefined || reason instanceof NotHeldError, reason)
  for (const { value } of all) await value?.release().catch((error) => assert.ok(error instanceof NotHeldError, error))
})

test('a waiter whose connection breaks keeps waiting', async () => {
  const grant = await locks.lock('a')
  const waits = locks.lock('a', { wait: 20_000 })
  await server.untilBlocked(1)
  const list = await server.order('CLIENT', 'LIST')
  const id = /^id=(\d+) .*flags=b/m.exec(list)?.[1] ?? /id=(\d+)[^\n]*flags=\S*b/.exec(list)[1]
  await server.order('CLIENT', 'KILL', 'ID', id)
  await server.untilBlocked(1)
  await grant.release()
  await (await waits).release()
})

test('a wait that ends without a reply leaves nothing', async () => {
  const grant = await locks.lock('a')
  await server.faults.add('lost', 'DROP-REPLY', { on: 'lock.acquire' })
  const refused = assert.rejects(locks.lock('a', { wait: 300 }), UnreachableError)
  await server.untilBlocked(1)
  await grant.release()
  await refused
  await server.faults.reset()
})

test('a wait that a node ends because it no longer leads goes on, and one that CLIENT UNBLOCK ends does not', async () => {
  const changed = 'UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)'
  await server.faults.add('changed', ['ERROR', changed], { on: 'lock.acquire', times: 1 })
  const grant = await locks.lock('a', { wait: 5000 })
  assert.equal(await server.faults.fired('changed'), 1)
  await server.faults.add('unblocked', ['ERROR', 'UNBLOCKED client unblocked via CLIENT UNBLOCK'], { on: 'lock.acquire', times: 1 })
  await assert.rejects(locks.lock('b', { wait: 5000 }), /unblocked via CLIENT UNBLOCK/)
  await grant.release()
  await server.faults.reset()
})

test('a grant that cannot be renewed at first is asked for again, while the wait goes on', async () => {
  const holder = await locks.lock('a')
  const waits = locks.lock('a', { lease: 3000, wait: 60_000 })
  await server.untilBlocked(1)
  // After a third of the lease only a renewal can tell how much of it is left.
  await sleep(1100)
  await server.faults.add('deaf', 'DROP', { on: 'lock.renew' })
  await holder.release()
  const grant = await waits
  assert.ok((await server.faults.fired('deaf')) > 0 && !grant.isLost)
  await server.faults.reset()
  await grant.release()
})

test('64 workers with replies that are lost, doubled and late', async () => {
  await server.faults.seed(7)
  for (const [name, fault] of Object.entries({ lost: 'DROP-REPLY', cut: 'CLOSE-AFTER', reset: 'RESET', late: 'DELAY-REPLY 20', slow: 'TRICKLE 1 1' })) {
    await server.faults.add(name, fault, { on: 'lock.*', probability: 0.04 })
  }
  const witness = new Witness()
  await workers(64, async () => {
    for (let round = 0; round < 2; round++) {
      const grant = await locks.lock('a', { wait: 60_000 })
      await witness.visit(grant.token, async () => {
        await locks.guard('resource').write(grant.token)
      })
      await grant.release()
    }
  })
  assert.equal(witness.most, 1)
  assert.equal(witness.entries, 128)
  assert.deepEqual(witness.faults, [])
  assert.ok((await server.faults.fired('lost')) > 0)
  await server.faults.reset()
})

test('a session ends with its connection', async () => {
  const grant = await locks.lock('a', { session: true })
  const next = locks.lock('a', { wait: 10_000 })
  await server.untilBlocked(1)
  await server.order('CLIENT', 'KILL', 'ID', (await locks.info('a')).holders[0].client)
  assert.match((await grant.lost).cause, /connection/)
  await (await next).release()
  await assert.rejects(grant.release(), NotHeldError)
})

test('a session with a grace comes back', async () => {
  const grant = await locks.lock('a', { lease: 60_000, session: { grace: 5000 } })
  const client = (await locks.info('a')).holders[0].client
  await server.order('CLIENT', 'KILL', 'ID', client)
  const isBack = async () => {
    const [holder] = (await locks.info('a')).holders
    return holder.client !== client && holder.gone === null
  }
  for (let left = 200; !(await isBack()); left--) {
    assert.ok(left > 0, 'the session does not come back')
    await sleep(10)
  }
  // If it were not back, it would end now.
  await server.clock.freeze()
  await server.clock.advance(6000)
  assert.ok(!grant.isLost && (await grant.check()))
  await grant.release()
})

test('a release that a restart made unknown is done', async () => {
  const grant = await locks.lock('a')
  await server.faults.add('restart', 'RESTART-AFTER', { on: 'lock.release', times: 1 })
  await grant.release()
  assert.equal(await server.faults.fired('restart'), 1)
})

test('a session that is released is free', async () => {
  for (const session of [true, { grace: 5000 }]) {
    const grant = await locks.lock('a', { session })
    assert.equal(await locks.tryLock('a', { session }), null)
    await grant.release()
    await (await locks.lock('a', { session })).release()
  }
})

test('a server out of reach ends the grant by the clock here', async () => {
  const grant = await locks.lock('a', { lease: 600 })
  await server.faults.add('deaf', 'DROP', { on: 'lock.renew' })
  const began = performance.now()
  const error = await grant.lost
  assert.match(error.cause, /its lease ended/)
  assert.ok(performance.now() - began < 900)
  await server.faults.reset()
  await assert.rejects(grant.release(), NotHeldError)
})

test('a restart that loses everything loses the lock', async () => {
  const grant = await locks.lock('a', { lease: 900 })
  await server.restart()
  assert.ok((await grant.lost) instanceof NotHeldError)
  await (await locks.lock('a')).release()
  await assert.rejects(grant.release(), NotHeldError)
})

test('the application’s clients lend their options only', async () => {
  const ioredis = server.client({ connectionName: 'application', keyPrefix: 'app:', db: 2 })
  const nodeRedis = await server.nodeRedis({ name: 'application', database: 2 })
  for (const client of [ioredis, nodeRedis]) {
    const own = connect(client)
    const grant = await own.lock('a')
    const [holder] = (await own.info('a')).holders
    assert.equal(holder.clientName, 'application')
    // A wait does not hold up the application's connection.
    const waits = own.lock('a', { wait: 20_000 })
    await server.untilBlocked(1)
    assert.equal(await client.ping(), 'PONG')
    await grant.release()
    await (await waits).release()
    assert.deepEqual(await client.keys('*'), [])
    await own.close()
    assert.equal(await client.ping(), 'PONG')
  }
})

test('too many waits are refused', async () => {
  const few = server.locks({ driver, maxConnections: 2 })
  const grant = await few.lock('a')
  const waits = [few.lock('a', { wait: 5000 }), few.lock('a', { wait: 5000 })]
  await server.untilBlocked(2)
  await assert.rejects(few.lock('a', { wait: 5000 }), /maxConnections/)
  // The holder still renews and releases.
  assert.ok((await grant.renew()) > 0)
  await grant.release()
  for (const wait of waits) await wait.then((granted) => granted.release())
})

test('a wait that asks again after a silence counts once', async () => {
  const few = server.locks({ driver, maxConnections: 2, timeout: 100 })
  const grant = await few.lock('a')
  const waits = [few.lock('a', { wait: 5000 }), few.lock('a', { wait: 5000 })]
  await server.untilBlocked(2)
  await sleep(350)
  await grant.release()
  for (const wait of waits) await wait.then((granted) => granted.release())
})

for (const [name, file] of [
  ['idle connections and renewals do not keep the process', 'idle.mjs'],
  ['the end of a test keeps the process until all is cleaned up', 'settled.mjs'],
]) {
  test(name, () => {
    const program = fileURLToPath(new URL(`./${file}`, import.meta.url))
    const { status, stdout, stderr } = spawnSync(process.execPath, [program, server.url], { encoding: 'utf8', timeout: 10_000 })
    assert.equal(status, 0, stderr)
    assert.equal(stdout, 'done\n')
  })
}

test("names with odd texts reach the server as they are", async () => {
  for (const name of ['a b', "it's", 'ü\r\n', '{x}']) {
    const grant = await locks.lock(name)
    assert.ok(await grant.check())
    await grant.release()
  }
})
