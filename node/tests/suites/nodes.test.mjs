// A cluster of three whose leader is killed while 64 workers take turns. The runner gives the ports, and ends the leader when this suite
// has printed `ready`.
import assert from 'node:assert/strict'
import { connect } from 'node:net'
import { after, before, test } from 'node:test'
import { NotHeldError } from 'portcullis-lock'
import { Witness, atMost, driver, locksOf, sleep, workers } from './setup.mjs'

const ports = process.env.NODE_PORTS.split(',')
const urls = {
  'all URLs': `redis://${ports.map((port) => `127.0.0.1:${port}`).join(',')}`,
  Sentinel: `redis+sentinel://${ports.map((port) => `127.0.0.1:${port}`).join(',')}/mymaster`,
}

let killed = false
let waitsForKill
before(() => {
  waitsForKill = new Promise((resolve) => process.stdin.once('data', resolve)).then(() => (killed = true))
})
after(() => process.stdin.destroy())

/** Has the nodes choose another leader. */
async function handOver() {
  // Until there is a leader to do it: one node is dead, and another change may be under way.
  for (let at = 0; ; at = (at + 1) % ports.length) {
    const port = ports[at]
    const socket = connect(Number(port), '127.0.0.1')
    const reply = await new Promise((resolve) => {
      socket.once('error', resolve)
      socket.once('data', (data) => resolve(String(data)))
      socket.write('NODE HANDOVER\r\n')
    })
    socket.destroy()
    if (reply === '+OK\r\n') return
  }
}

test('64 workers whose leader is killed', async () => {
  const drives = Object.entries(urls).map(async ([by, url]) => {
    const kind = `${driver}:${by}`
    const locks = locksOf(url, { timeout: 1000 })
    const witness = new Witness()
    const name = `busy:${kind}`
    const kept = await locks.lock(`kept:${kind}`, { lease: 20_000 })
    const session = await locks.lock(`session:${kind}`, { lease: 20_000, session: { grace: 10_000 } })
    let late = 0
    const turns = workers(64, async (number) => {
      for (let round = 0; round < 2 || late < 64; round++) {
        const grant = await locks.lock(name, { wait: 30_000, lease: 10_000 })
        await witness.visit(grant.token, () => locks.guard(`resource:${kind}`).write(grant.token))
        await grant.release()
        if (killed) late++
        if (number === 0 && round === 0) reached()
      }
    })
    await turns
    assert.equal(witness.most, 1)
    assert.deepEqual(witness.faults, [])
    assert.ok(!kept.isLost && (await kept.check()))
    assert.ok(!session.isLost && (await session.check()))
    const moved = await locks.lock(`moved:${kind}`, { lease: 60_000 })
    // The leader hands over, and so ends the waits of clients, which go on at the next one.
    const waiting = locks.lock(`kept:${kind}`, { wait: 30_000 })
    const hasWaiter = async () => ((await locks.info(`kept:${kind}`))?.waiters ?? []).length === 1
    while (!(await hasWaiter()));
    await handOver()
    while (!(await hasWaiter()));
    assert.ok(!kept.isLost && (await kept.check()))
    // The next leader tells the loss of a lock of the last one: the first renewal would be later.
    await sleep(500)
    await locks.break(moved.name, moved.token).catch((error) => assert.ok(error instanceof NotHeldError, error))
    assert.ok((await Promise.race([moved.lost, atMost(10_000)])) instanceof NotHeldError, 'the loss of a lock of the last leader is not heard')
    await kept.release()
    await (await waiting).release()
    await session.release()
    // The next leader tells losses as well: the first renewal would be later. Another of these clients may have the nodes choose yet another one
    // meanwhile. That one does not know the cause, and a break that is asked for again finds nothing to break.
    const broken = await locks.lock(`broken:${kind}`, { lease: 60_000 })
    await locks.break(broken.name, broken.token).catch((error) => assert.ok(error instanceof NotHeldError, error))
    assert.ok((await Promise.race([broken.lost, atMost(10_000)])) instanceof NotHeldError, 'the loss is not heard')
    for (const each of [name, `kept:${kind}`, `session:${kind}`]) assert.deepEqual((await locks.info(each))?.holders ?? [], [], each)
    await locks.close()
  })
  let count = 0
  function reached() {
    if (++count === drives.length) console.log('ready')
  }
  await Promise.all([waitsForKill, ...drives])
})
