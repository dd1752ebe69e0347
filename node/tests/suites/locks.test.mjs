// What locks, several locks, semaphores, latches, guards and limits do on one server.
import assert from 'node:assert/strict'
import { mock, test } from 'node:test'
import { DeadlockError, LockError, NotAcquiredError, NotHeldError, NotPortcullisError, StaleTokenError } from 'portcullis-lock'
import { aborted, locks, locksOf, server, sleep, useServer } from './setup.mjs'

useServer({ name: 'suite' })

test('a lock has a token, a lease and one release', async () => {
  const grant = await locks.lock('a', { lease: 5000 })
  assert.ok(Number.isSafeInteger(grant.token) && grant.token > 2 ** 40)
  assert.ok(grant.remaining() > 4000 && grant.remaining() <= 4750)
  assert.equal(await grant.check(), true)
  // Less the margin.
  assert.equal(await grant.renew(), 4750)
  const released = grant.release()
  assert.equal(grant.release(), released)
  await released
  assert.equal(grant.remaining(), 0)
  assert.equal(grant.isLost, false)
  assert.equal(await grant.check(), false)
  await assert.rejects(grant.renew(), LockError)
  const next = await locks.lock('a')
  assert.ok(next.token > grant.token)
  await next.release()
})

test('each acquisition has an owner of its own', async () => {
  const grant = await locks.lock('a')
  assert.equal(await locks.tryLock('a'), null)
  await grant.release()
})

test('who holds it is in the error', async () => {
  const grant = await locks.lock('a')
  await assert.rejects(locks.lock('a'), (error) => {
    assert.ok(error instanceof NotAcquiredError && error instanceof LockError)
    assert.deepEqual(error.names, ['a'])
    assert.equal(error.holders.length, 1)
    assert.equal(error.holders[0].token, grant.token)
    assert.equal(error.holders[0].clientName, 'suite')
    assert.match(error.message, /'a' was not granted at once; .*held by '.*' \('suite' at 127/)
    return true
  })
  await grant.release()
})

test('a wait of 0 asks once, and Infinity waits', async () => {
  const grant = await locks.lock('a')
  const began = performance.now()
  assert.equal(await locks.tryLock('a', { wait: 0 }), null)
  assert.ok(performance.now() - began < 500)
  const waits = locks.lock('a', { wait: Infinity })
  await server.untilBlocked(1)
  await grant.release()
  await (await waits).release()
})

test('a wait that is longer than the lease gives a whole lease', async () => {
  const holder = await locks.lock('a')
  const waits = locks.lock('a', { lease: 1500, wait: 30_000, renew: false })
  await sleep(1600)
  await holder.release()
  const grant = await waits
  assert.ok(!grant.isLost && grant.remaining() > 0)
  await grant.release()
})

test('a wait ends on the server’s clock', async () => {
  await server.clock.freeze()
  const grant = await locks.lock('a')
  const waits = locks.tryLock('a', { wait: 20_000 })
  await server.untilBlocked(1)
  await server.clock.advance(20_000)
  assert.equal(await waits, null)
  await grant.release()
})

test('options that are no milliseconds are refused', async () => {
  for (const options of [{ lease: 0 }, { lease: 1.5 }, { wait: -1 }, { session: { grace: 0 } }, { maxHold: 0 }]) {
    await assert.rejects(locks.lock('a', options), RangeError, JSON.stringify(options))
  }
  await assert.rejects(locks.all([]), TypeError)
})

test('await using and withLock release', async () => {
  assert.equal(await locks.withLock('a', { lease: 1000 }, (grant, signal) => {
    assert.equal(signal.aborted, false)
    return grant.name
  }), 'a')
  await assert.rejects(locks.withLock('a', {}, () => Promise.reject(new Error('of the work'))), /of the work/)
  const grant = await locks.lock('a')
  await grant[Symbol.asyncDispose]()
  await (await locks.lock('a')).release()
})

test('a lock that is deleted is lost, with the server’s cause', async () => {
  const grant = await locks.lock('a', { lease: 300 })
  let event
  grant.on('lost', (error) => (event = error))
  const { signal } = grant
  await server.order('DEL', 'a')
  const error = await grant.lost
  assert.ok(error instanceof NotHeldError)
  assert.match(error.cause, /deleted by client/)
  assert.equal(event, error)
  assert.equal(signal.reason, error)
  assert.ok(signal.aborted && grant.isLost && grant.remaining() === 0)
  await assert.rejects(grant.release(), error)
  await assert.rejects(grant.renew(), LockError)
})

test('a release that finds the lock gone says so', async () => {
  const grant = await locks.lock('a')
  await server.order('DEL', 'a')
  await assert.rejects(grant.release(), NotHeldError)
  assert.ok((await grant.lost) instanceof NotHeldError)
})

test('withLock says when its work was not protected', async () => {
  const work = locks.withLock('a', { lease: 300 }, async (_, signal) => {
    await server.order('DEL', 'a')
    await aborted(signal)
  })
  await assert.rejects(work, NotHeldError)
})

test('a move of the server’s clock shows at once', async () => {
  await server.clock.freeze()
  const grant = await locks.lock('a', { lease: 10_000 })
  const other = await locks.lock('b', { lease: 60_000 })
  await server.clock.advance(10_000)
  assert.ok(grant.isLost && !other.isLost)
  await assert.rejects(grant.release(), NotHeldError)
  await other.release()
})

// Under Node.js 18 the fake timers of node:test are others.
test('renewals keep a lock beyond its lease, and stop with maxHold', { skip: Number(process.versions.node.split('.')[0]) < 20 }, async () => {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval', 'Date'], now: Date.now() })
  try {
    await server.clock.follow(mock.timers)
    const grants = await Promise.all(Array.from({ length: 200 }, (_, number) => locks.lock(`many:${number}`, { lease: 30_000 })))
    const bounded = await locks.lock('bounded', { lease: 30_000, maxHold: 36_000 })
    const still = await locks.lock('still', { lease: 30_000, renew: false })
    for (let slice = 0; slice < 4; slice++) {
      await server.clock.advance(12_000)
      // Replies take real time: a durable server's disk may be slow. The clock stands still meanwhile.
      const began = performance.now()
      while (grants.some((grant) => grant.remaining() < 20_000) && performance.now() - began < 10_000) await new Promise(setImmediate)
    }
    assert.deepEqual([bounded.isLost, still.isLost], [true, true])
    for (const grant of grants) assert.ok(!grant.isLost && grant.remaining() > 0)
    assert.deepEqual(await locks.checkAll(), [])
    await Promise.all(grants.map((grant) => grant.release()))
    for (const lost of [bounded, still]) await assert.rejects(lost.release(), NotHeldError)
  } finally {
    mock.timers.reset()
  }
})

test('shared holders are inside together, and a writer waits', async () => {
  const readers = [await locks.lock('a', { shared: true }), await locks.lock('a', { shared: true })]
  const writer = locks.lock('a', { wait: 10_000 })
  await server.untilBlocked(1)
  await Promise.all(readers.map((reader) => reader.release()))
  await (await writer).release()
})

test('a named owner is reentrant, and keeps the longest lease', async () => {
  const outer = await locks.lock('a', { owner: 'ann', lease: 60_000 })
  const inner = await locks.lock('a', { owner: 'ann', lease: 1000 })
  assert.equal(inner.token, outer.token)
  assert.ok((await locks.info('a')).holders[0].lease > 50_000)
  await inner.release()
  assert.equal(await locks.tryLock('a'), null)
  await outer.release()
  assert.equal(await locks.info('a').then((info) => info?.holders.length ?? 0), 0)
})

test('a named reader becomes the writer', async () => {
  const reader = await locks.lock('a', { owner: 'ann', shared: true })
  const writer = await locks.lock('a', { owner: 'ann' })
  assert.ok(writer.token > reader.token)
  await writer.release()
  await reader.release()
})

test('a deadlock is refused, with its cycle', async () => {
  const ann = await locks.lock('a', { owner: 'ann' })
  const bob = await locks.lock('b', { owner: 'bob' })
  const waits = locks.lock('a', { owner: 'bob', wait: 10_000 })
  await server.untilBlocked(1)
  await assert.rejects(locks.lock('b', { owner: 'ann', wait: 10_000 }), (error) => {
    assert.ok(error instanceof DeadlockError)
    assert.deepEqual(error.cycle, [
      { owner: 'ann', lock: 'b', behind: 'bob', held: true },
      { owner: 'bob', lock: 'a', behind: 'ann', held: true },
    ])
    return true
  })
  await ann.release()
  await (await waits).release()
  await bob.release()
})

test('several locks come together or not at all', async () => {
  const one = await locks.lock('b')
  assert.equal(await locks.tryAll(['a', 'b']), null)
  await assert.rejects(locks.all(['a', 'b']), (error) => error.holders.length === 1)
  const waits = locks.all(['c', 'b', 'a'], { wait: 10_000 })
  await server.untilBlocked(1)
  await one.release()
  const all = await waits
  assert.equal(new Set(all.tokens).size, 3)
  assert.ok((await all.check()) && (await all.renew()) > 0)
  await all.release()
})

test('permits of a semaphore', async () => {
  const printers = locks.semaphore('printers', 3)
  const two = await printers.acquire({ permits: 2 })
  const one = await printers.acquire()
  assert.equal(await printers.tryAcquire(), null)
  await assert.rejects(locks.semaphore('printers', 4).acquire(), (error) => error.code === 'LIMIT')
  assert.ok((await two.check()) && (await two.renew()) > 0)
  await two.release()
  await (await printers.acquire({ permits: 2, wait: 1000 })).release()
  await one.release()
})

test('a latch opens', async () => {
  const latch = locks.latch('parts')
  assert.equal(await latch.wait({ wait: 20 }), false)
  assert.equal(await latch.set(2), true)
  assert.equal(await latch.set(2), false)
  const waits = latch.wait()
  await server.untilBlocked(1)
  assert.equal(await latch.down(), 1)
  assert.equal(await latch.down(), 0)
  assert.equal(await waits, true)
  const controller = new AbortController()
  const aborted = locks.latch('none').wait({ signal: controller.signal })
  await server.untilBlocked(1)
  controller.abort(new Error('enough'))
  await assert.rejects(aborted, /enough/)
  await server.untilBlocked(0)
})

test('a guard refuses smaller tokens', async () => {
  const guard = locks.guard('ledger')
  await guard.write(34)
  await guard.write(34)
  await assert.rejects(guard.write(33), (error) => error instanceof StaleTokenError && error.token === 33 && error.seen === 34)
})

test('a rate limit', async () => {
  const limit = { maxBurst: 0, count: 1, period: 60_000 }
  assert.equal((await locks.throttle('api', limit)).limited, false)
  const refused = await locks.throttle('api', limit)
  assert.ok(refused.limited && refused.retryAfter > 50_000)
  await assert.rejects(locks.throttle('api', { ...limit, period: 1500 }), RangeError)
})

test('a grant can be broken, and its holder learns of it', async () => {
  const grant = await locks.lock('a', { lease: 300 })
  await locks.break('a', grant.token, 'it hangs')
  assert.match((await grant.lost).cause, /broken/)
  await assert.rejects(locks.break('a', grant.token), NotHeldError)
  await assert.rejects(grant.release(), NotHeldError)
})

test('an aborted wait leaves the queue at once', async () => {
  const grant = await locks.lock('a')
  const controller = new AbortController()
  const waits = locks.lock('a', { wait: Infinity, signal: controller.signal })
  await server.untilBlocked(1)
  const began = performance.now()
  controller.abort(new Error('enough'))
  await assert.rejects(waits, /enough/)
  assert.ok(performance.now() - began < 1000)
  await server.untilBlocked(0)
  await assert.rejects(locks.lock('a', { signal: controller.signal }), /enough/)
  await grant.release()
})

test('a grant that races in with an abort is given back', async () => {
  for (let round = 0; round < 50; round++) {
    const grant = await locks.lock('a')
    const controller = new AbortController()
    const waits = locks
      .lock('a', { wait: 10_000, signal: controller.signal })
      .then((granted) => granted.release(), (error) => assert.equal(error.message, 'enough'))
    await server.untilBlocked(1)
    const released = grant.release()
    // Between not at all and a few hundred microseconds later.
    for (let turn = 0; turn < round % 10; turn++) await new Promise(setImmediate)
    controller.abort(new Error('enough'))
    await released
    await waits
    await (await locks.lock('a', { wait: 5000 })).release()
  }
})

test('the first message of Redis says that it is not Portcullis', async () => {
  await server.faults.add('redis', ['ERROR', "ERR unknown command 'LOCK.ACQUIRE', with args beginning with: 'a'"], { on: 'lock.acquire' })
  await assert.rejects(locks.lock('a'), (error) => {
    assert.ok(error instanceof NotPortcullisError)
    assert.match(error.message, /no Portcullis server; start one with `npx portcullis serve`/)
    return true
  })
})

test('close tells the work under a lock', async () => {
  const own = locksOf(server.url)
  let release
  const work = own.withLock('a', (grant, signal) => {
    release = () => grant.release()
    return aborted(signal)
  })
  const named = await own.lock('b', { owner: 'ann' })
  const unheard = await own.lock('c', { session: true })
  while (release === undefined) await sleep(1)
  // Its result is not protected, and a release says so.
  const refused = assert.rejects(work, (error) => error instanceof NotHeldError && /close\(\) was called on the locks/.test(error.cause))
  await own.close()
  await refused
  for (const grant of [named, unheard]) {
    assert.ok(grant.isLost && grant.signal.aborted)
    assert.equal(grant.signal.reason, await grant.lost)
    await assert.rejects(grant.release(), NotHeldError)
  }
  await assert.rejects(release(), NotHeldError)
  assert.deepEqual(await server.leakedLocks(), [])
})

test('close releases what is held', async () => {
  const own = locksOf(server.url)
  const grant = await own.lock('a')
  const waits = own.lock('a', { wait: Infinity })
  waits.catch(() => {})
  await server.untilBlocked(1)
  await own.close()
  assert.equal(grant.remaining(), 0)
  await assert.rejects(waits, LockError)
  const last = locksOf(server.url)
  await last.info('a')
  const racing = assert.rejects(last.lock('a'), /close\(\) was called/)
  await last.close()
  await racing
  await assert.rejects(own.lock('a'), /close\(\) was called/)
})
