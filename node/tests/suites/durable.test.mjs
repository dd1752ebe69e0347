// A durable server that is killed and started again keeps locks and tokens: clients go on.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { PortcullisServer } from 'portcullis-lock/testing'
import { Witness, locksOf, workers } from './setup.mjs'

test('64 workers, and a server that is killed and started again', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-durable-'))
  // With everysec, a grant that its owner knows of can be lost with the process.
  const flags = ['--appendonly', 'yes', '--appendfsync', 'always', '--dir', folder]
  let server = await PortcullisServer.create({ flags })
  try {
    const { port, url } = server
    const locks = locksOf(url, { timeout: 1000 })
    const kept = await locks.lock('kept', { lease: 30_000 })
    const still = await locks.lock('still', { lease: 30_000, renew: false })
    const witness = new Witness()
    let turns = 0
    let restarted
    await workers(64, async () => {
      for (let round = 0; round < 3; round++) {
        const grant = await locks.lock('busy', { wait: 30_000 })
        await witness.visit(grant.token, () => locks.guard('resource').write(grant.token))
        await grant.release()
        if (++turns === 64) {
          restarted = server.stop().then(() => PortcullisServer.create({ flags, port }))
          server = await restarted
        }
      }
    })
    assert.ok(restarted)
    assert.equal(witness.most, 1)
    assert.equal(witness.entries, 192)
    assert.deepEqual(witness.faults, [])
    for (const grant of [kept, still]) {
      assert.ok(await grant.check())
      // Another connection has it, without a further hold.
      const [holder] = (await locks.info(grant.name)).holders
      assert.deepEqual([holder.token, holder.holds, holder.gone], [grant.token, 1, null])
      await grant.release()
    }
    await locks.close()
    assert.deepEqual(await server.leakedLocks(), [])
  } finally {
    await server.stop()
    rmSync(folder, { recursive: true, force: true })
  }
})
