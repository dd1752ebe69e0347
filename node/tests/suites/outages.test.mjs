// Servers that are not there, not yet, not any more, or that hang: how long each request takes, and what holders hear.
import assert from 'node:assert/strict'
import { readFileSync, readdirSync } from 'node:fs'
import { test } from 'node:test'
import { NotHeldError, UnreachableError } from 'portcullis-lock'
import { PortcullisServer } from 'portcullis-lock/testing'
import { atMost, driver, freePorts, locksOf, sleep } from './setup.mjs'

const NOWHERE = 'redis://127.0.0.1:1'

// Upper bounds are generous: other work may keep the machine. Each is far below what these requests took when they knew no better.
/** Milliseconds until the promise is settled. */
const time = async (promise) => {
  const began = performance.now()
  await promise
  return performance.now() - began
}
const unreachable = (promise) => assert.rejects(promise, (error) => error instanceof UnreachableError && error.constructor === UnreachableError)
/** Suspends the server's process. The signal may take a while to reach all of its threads. */
const suspend = async ({ pid }) => {
  process.kill(pid, 'SIGSTOP')
  const isStopped = (thread) => / T /.test(readFileSync(`/proc/${pid}/task/${thread}/stat`, 'utf8').replace(/\(.*\)/, ''))
  while (!readdirSync(`/proc/${pid}/task`).every(isStopped)) await sleep(1)
}
/** Runs a test with a server, which may end before, and locks of it. */
const withServer = async (work, options = {}) => {
  const server = await PortcullisServer.create()
  const locks = locksOf(server.url, options)
  try {
    await work(server, locks)
  } finally {
    // Also one that is suspended.
    await server.stop()
    await locks.close()
  }
}

test('a server that was never there', async () => {
  const locks = locksOf(NOWHERE)
  const requests = [
    () => locks.lock('a'),
    () => locks.tryLock('a'),
    () => locks.lock('a', { session: true }),
    () => locks.info('a'),
    () => locks.latch('l').down(),
    () => locks.throttle('api', { maxBurst: 1, count: 1, period: 1000 }),
  ]
  for (const request of requests) {
    const took = await time(unreachable(request()))
    assert.ok(took < 3000, `${request}: ${took} ms`)
  }
  for (const wait of [() => locks.lock('a', { wait: 500 }), () => locks.tryLock('a', { wait: 500 }), () => locks.latch('l').wait({ wait: 500 })]) {
    const took = await time(unreachable(wait()))
    assert.ok(took < 1500, `${wait}: ${took} ms`)
  }
  await locks.close()
})

test('several nodes that were never there', async () => {
  const locks = locksOf(`${NOWHERE},127.0.0.1:2`)
  assert.ok((await time(unreachable(locks.lock('a')))) < 3000)
  await locks.close()
})

test('a wait goes on until the server is there', async () => {
  const [port] = await freePorts(1)
  const locks = locksOf(`redis://127.0.0.1:${port}`, { patience: 500 })
  const warnings = []
  const warned = (warning) => warnings.push(warning)
  process.on('warning', warned)
  const waits = [locks.lock('a', { wait: 10_000 }), locks.lock('b', { wait: Infinity }), locks.latch('l').wait({ wait: 10_000 })]
  await sleep(1000)
  const server = await PortcullisServer.create({ port })
  try {
    const grants = await Promise.all(waits.slice(0, 2))
    await sleep(100)
    assert.equal(await locks.latch('l').set(1), true)
    await locks.latch('l').down()
    assert.equal(await waits[2], true)
    for (const grant of grants) await grant.release()
    // An address that is wrong shows.
    const own = warnings.filter((warning) => warning.name === 'PortcullisWarning')
    assert.equal(own.length, 1)
    assert.match(own[0].message, /no reply from the server yet \(.*ECONNREFUSED.*\): does it run/)
  } finally {
    process.off('warning', warned)
    await locks.close()
    await server.stop()
  }
})

test('an abort ends a wait for a server that is not there', async () => {
  const locks = locksOf(NOWHERE)
  const signal = AbortSignal.timeout(200)
  await assert.rejects(locks.lock('a', { wait: Infinity, signal }), (error) => error === signal.reason)
  await locks.close()
})

test('a server that hangs', async () => {
  await withServer(async (server, locks) => {
    const grant = await locks.lock('a')
    await suspend(server)
    const released = time(unreachable(grant.release()))
    for (const [what, ask] of Object.entries({
      'a lock': () => locks.lock('b', { wait: 1000 }),
      'a session': () => locks.lock('b', { wait: 1000, session: { grace: 1000 } }),
      'a latch': () => locks.latch('l').wait({ wait: 1000 }),
    })) {
      const took = await time(unreachable(ask()))
      assert.ok(took > 900 && took < 2600, `${what}: ${took} ms`)
    }
    assert.ok((await released) < 2800)
    process.kill(server.pid, 'SIGCONT')
    // It is released after all, long before the end of its lease.
    await (await locks.lock('a', { wait: 10_000 })).release()
  })
})

test('a server that hangs from the start', async () => {
  const server = await PortcullisServer.create()
  await suspend(server)
  // With and without a reply that is needed to open a connection.
  const all = [server.url, `redis://127.0.0.1:${server.port}/3`].map((url) => locksOf(url, { timeout: 1000, connectTimeout: 1000 }))
  try {
    for (const locks of all) {
      assert.ok((await time(unreachable(locks.lock('a')))) < 2500)
      assert.ok((await time(unreachable(locks.lock('a', { wait: 500 })))) < 2300)
    }
  } finally {
    process.kill(server.pid, 'SIGCONT')
    for (const locks of all) await locks.close()
    await server.stop()
  }
})

test('a server that is gone', async () => {
  await withServer(async (server, locks) => {
    const [one, two] = [await locks.lock('a'), await locks.lock('b', { owner: 'ann' })]
    await server.stop()
    const took = await Promise.all([
      time(unreachable(one.release())),
      time(unreachable(two.release())),
      time(unreachable(locks.lock('c'))),
      time(unreachable(locks.lock('c', { wait: 300 }))),
      time(unreachable(locks.latch('l').down())),
    ])
    // It was there, so that a request is repeated for its patience.
    for (const [at, [least, most]] of [[1000, 2600], [1000, 2600], [1000, 2600], [0, 1300], [1000, 2600]].entries()) {
      assert.ok(took[at] >= least && took[at] <= most, `${at}: ${took[at]} ms`)
    }
    assert.ok((await time(locks.close())) < 2800)
  }, { patience: 2000 })
})

test('close() with a server that hangs', async () => {
  await withServer(async (server, locks) => {
    const grant = await locks.lock('a')
    await locks.lock('b', { session: { grace: 5000 } })
    await suspend(server)
    const refused = [assert.rejects(locks.lock('a', { wait: Infinity })), unreachable(locks.lock('a', { wait: 100 }))]
    await refused[1]
    assert.ok((await time(locks.close())) < 2800)
    await refused[0]
    assert.ok(grant.signal.aborted)
  })
})

test('a holder hears at once of a restart without the data', async () => {
  await withServer(async (server, locks) => {
    const lease = 300_000
    const grants = await Promise.all([
      locks.lock('a', { lease }),
      locks.lock('b', { lease, renew: false }),
      locks.lock('c', { lease, owner: 'ann' }),
      locks.lock('d', { lease, owner: 'ann', renew: false }),
      locks.lock('e', { lease, owner: 'ann', shared: true }),
      locks.all(['f', 'g'], { lease }),
      locks.semaphore('s', 2).acquire({ lease }),
    ])
    const session = await locks.lock('h', { lease, session: { grace: 100_000 } })
    const { port } = server
    await server.stop()
    await sleep(500)
    assert.ok(grants.every((grant) => !grant.isLost && grant.remaining() > 0))
    const next = await PortcullisServer.create({ port })
    try {
      for (const grant of grants) {
        const error = await Promise.race([grant.lost, atMost(3000)])
        assert.ok(error instanceof NotHeldError, `${grant.name}: the loss is not heard`)
        assert.equal(error.cause, 'the server does not know the grant: it has restarted without its data, or has lost its last writes')
        assert.ok(grant.signal.aborted)
        await assert.rejects(grant.release(), NotHeldError)
      }
      const error = await Promise.race([session.lost, atMost(3000)])
      assert.match(error?.cause, /its session has ended, or the server has restarted without its data|does not know the grant/)
      // Nothing was acquired anew.
      assert.deepEqual(await next.leakedLocks(), [])
    } finally {
      await next.stop()
    }
  })
})
