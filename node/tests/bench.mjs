// What the package costs beside raw commands: an acquisition and its release over the package, and the two commands over ioredis alone.
// Both take turns; medians. `node bench.mjs PROGRAM [ROUNDS]` in a folder whose node_modules has portcullis-lock and ioredis.
import { Redis } from 'ioredis'
import { connect } from 'portcullis-lock'
import { PortcullisServer } from 'portcullis-lock/testing'

const PAIRS = 500
const [program, rounds = 41] = process.argv.slice(2)
const server = await PortcullisServer.create({ program })
const redis = new Redis(server.url, { protocol: 2 })
const locks = connect(redis)

let owners = 0
const runs = {
  async raw() {
    const owner = `owner-of-one-acquisition:${++owners}`
    const token = await redis.call('LOCK.ACQUIRE', 'raw', owner, '30000')
    await redis.call('LOCK.RELEASE', 'raw', owner, 'TOKEN', token)
  },
  async package() {
    const grant = await locks.lock('package', { lease: 30_000 })
    await grant.release()
  },
}
const took = { raw: [], package: [] }
const cpu = { raw: [], package: [] }
for (let round = -3; round < Number(rounds); round++) {
  for (const [name, run] of Object.entries(runs)) {
    const began = performance.now()
    const beganCpu = process.cpuUsage()
    for (let pair = 0; pair < PAIRS; pair++) await run()
    const { user, system } = process.cpuUsage(beganCpu)
    // The first rounds warm up.
    if (round < 0) continue
    took[name].push(((performance.now() - began) * 1000) / PAIRS)
    cpu[name].push((user + system) / PAIRS)
  }
}
const median = (list) => list.sort((a, b) => a - b)[list.length >> 1]
for (const [what, lists] of Object.entries({ wall: took, CPU: cpu })) {
  const [raw, ours] = [median(lists.raw), median(lists.package)]
  console.log(`${what}: ${raw.toFixed(1)} us raw, ${ours.toFixed(1)} us over the package, ratio ${(ours / raw).toFixed(2)}`)
}
await locks.close()
redis.disconnect()
await server.stop()
