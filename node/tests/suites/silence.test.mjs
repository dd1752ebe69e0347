// Holders whose connections stand, and whom nobody answers: they count as no holders before the server's leases end, and find another node before.
import assert from 'node:assert/strict'
import { connect as dial, createServer } from 'node:net'
import { test } from 'node:test'
import { NotHeldError } from 'portcullis-lock'
import { PortcullisServer } from 'portcullis-lock/testing'
import { atMost, locksOf, sleep } from './setup.mjs'

// Its margin is longer than a busy machine takes to fire a timer.
const LEASE = 6000
const CERTAIN = LEASE - LEASE / 20

/** A network that can fall silent: connections stand, nothing gets through, and what was sent arrives later. */
class Proxy {
  #sockets = new Set()
  #listener = createServer({ pauseOnConnect: true }, (near) => this.#carry(near))
  #isSilent = false

  static async to(server) {
    const proxy = new Proxy()
    proxy.target = server.port
    await new Promise((resolve) => proxy.#listener.listen(0, '127.0.0.1', resolve))
    proxy.port = proxy.#listener.address().port
    return proxy
  }

  #carry(near) {
    const far = dial(this.target, '127.0.0.1')
    for (const [from, to] of [[near, far], [far, near]]) {
      this.#sockets.add(from)
      from.on('data', (data) => to.write(data)).on('error', () => {}).on('close', () => to.destroy())
      if (this.#isSilent) from.pause()
      else from.resume()
    }
  }

  set isSilent(silent) {
    this.#isSilent = silent
    for (const socket of this.#sockets) silent ? socket.pause() : socket.resume()
  }

  /** Closes everything, and refuses connections from now on. */
  close() {
    this.#listener.close()
    for (const socket of this.#sockets) socket.destroy()
  }
}

async function withServer(work) {
  const server = await PortcullisServer.create()
  const others = locksOf(server.url)
  const proxies = []
  const ways = async (count) => {
    while (proxies.length < count) proxies.push(await Proxy.to(server))
    return proxies
  }
  const urlOf = (all) => `redis://${all.map(({ port }) => `127.0.0.1:${port}`).join(',')}`
  try {
    await work({ server, others, ways, urlOf })
  } finally {
    for (const proxy of proxies) proxy.close()
    await others.close()
    await server.stop()
  }
}

test('nobody holds when the server has not answered for the lease', async () => {
  await withServer(async ({ others, ways, urlOf }) => {
    const [proxy] = await ways(1)
    const locks = locksOf(urlOf([proxy]))
    const lease = LEASE
    const kinds = {
      lock: () => locks.lock('lock', { lease }),
      waited: () => locks.lock('waited', { lease, wait: 5000 }),
      still: () => locks.lock('still', { lease, renew: false }),
      shared: () => locks.lock('shared', { lease, shared: true }),
      owner: () => locks.lock('owner', { lease, owner: 'ann' }),
      both: () => locks.all(['both', 'b'], { lease }),
      permits: () => locks.semaphore('permits', 2).acquire({ lease }),
      session: () => locks.lock('session', { lease, session: true }),
      named: () => locks.lock('named', { lease, session: { grace: 60_000 } }),
      stillNamed: () => locks.lock('stillNamed', { lease, session: { grace: 60_000 }, renew: false }),
      maxHold: () => locks.lock('maxHold', { lease: 60_000, maxHold: lease }),
    }
    const told = {}
    const grants = {}
    for (const [kind, acquire] of Object.entries(kinds)) {
      const grant = (grants[kind] = await acquire())
      grant.on('lost', () => (told[kind] = performance.now()))
      assert.ok(!grant.isLost && grant.remaining() > 0 && grant.remaining() <= CERTAIN, kind)
    }
    proxy.isSilent = true
    const silent = performance.now()
    const left = Object.fromEntries(Object.entries(grants).map(([kind, grant]) => [kind, grant.remaining()]))
    await Promise.race([Promise.all(Object.values(grants).map((grant) => grant.lost)), atMost(2 * LEASE)])
    for (const kind of Object.keys(kinds)) {
      const late = told[kind] - silent - left[kind]
      assert.ok(left[kind] <= CERTAIN && late > -5 && late < LEASE - CERTAIN, `${kind}: ${left[kind]} ms were left, and it was told ${late} ms after that`)
    }
    proxy.isSilent = false
    for (const [kind, grant] of Object.entries(grants)) {
      assert.ok(grant.isLost && grant.remaining() === 0 && !(await grant.check()), kind)
      await assert.rejects(grant.release(), NotHeldError)
    }
    await sleep(1000)
    delete kinds.owner // Another grant of that owner may be the server's.
    for (const kind of Object.keys(kinds)) assert.deepEqual((await others.info(kind))?.holders ?? [], [], kind)
    await locks.close()
  })
})

test('a node that does not answer is left for the next leader', async () => {
  const lease = 3000
  await withServer(async ({ others, ways, urlOf }) => {
    // Two ways to one server: the one that led stands still, and the other one leads.
    const [first, second] = await ways(2)
    const locks = locksOf(urlOf([first, second]))
    const grants = [
      await locks.lock('a', { lease }),
      await locks.lock('named', { lease, session: { grace: 60_000 } }),
      await locks.lock('session', { lease, session: true }),
      await locks.semaphore('s', 2).acquire({ lease }),
    ]
    const before = (await others.info('named')).holders[0].client
    first.isSilent = true
    await sleep(2 * lease)
    for (const grant of grants) assert.ok(!grant.isLost && (await grant.check()), grant.name)
    assert.notEqual((await others.info('named')).holders[0].client, before)
    // The server takes the end of the old connection for no end of a session that has a name.
    const [plain, named] = grants
    first.isSilent = false
    first.close()
    await sleep(300)
    assert.ok(!plain.isLost && (await plain.check()) && !named.isLost && (await named.check()))
    for (const grant of grants) await grant.release().catch((error) => assert.ok(grant.name === 'session' && error instanceof NotHeldError, error))
    await locks.close()
  })
})

test('a session that cannot come back is lost with its grace', async () => {
  await withServer(async ({ others, ways, urlOf }) => {
    const [proxy] = await ways(1)
    const locks = locksOf(urlOf([proxy]))
    const named = await locks.lock('named', { lease: 60_000, session: { grace: 800 } })
    const still = await locks.lock('still', { lease: 60_000, session: { grace: 800 }, renew: false })
    const plain = await locks.lock('plain', { lease: 60_000, session: true })
    const begun = performance.now()
    const next = others.lock('named', { wait: 60_000 }).then((grant) => (grant.release(), performance.now() - begun))
    proxy.close()
    await Promise.race([plain.lost, atMost(5000)])
    assert.ok(plain.isLost)
    await Promise.race([Promise.all([named.lost, still.lost]), atMost(5000)])
    assert.ok(named.isLost && still.isLost && performance.now() - begun < 3000, `${performance.now() - begun} ms`)
    assert.match((await named.lost).cause, /could not be resumed in time/)
    assert.ok((await next) >= 800)
    await locks.close()
  })
})

test('a wait for a session, and for a latch, leaves a node that does not answer', async () => {
  await withServer(async ({ others, ways, urlOf }) => {
    const [first, second] = await ways(2)
    const locks = locksOf(urlOf([first, second]), { timeout: 500 })
    const holders = [await others.lock('a'), await others.lock('b')]
    await others.latch('l').set(1)
    const waits = [
      locks.lock('a', { wait: Infinity, session: true }),
      locks.lock('b', { wait: Infinity, session: { grace: 5000 } }),
      locks.latch('l').wait({ wait: Infinity }),
    ]
    await sleep(300)
    first.isSilent = true
    await sleep(1500)
    for (const holder of holders) await holder.release()
    await others.latch('l').down()
    const [one, two, opened] = await Promise.race([Promise.all(waits), atMost(30_000)])
    assert.ok(opened)
    await one.release()
    await two.release()
    await locks.close()
  })
})
