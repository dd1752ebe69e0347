// What the package costs beside raw commands: an acquisition and its release over the package, and the two commands over the client
// library alone. Both take turns; medians. `node bench.mjs PROGRAM [ROUNDS] [ioredis|node-redis]` in a folder whose node_modules has
// portcullis-lock and the client libraries. The CPU time is what counts: it varies less with what else the machine does.
import { Redis } from 'ioredis'
import { createClient } from 'redis'
import { connect } from 'portcullis-lock'
import { PortcullisServer } from 'portcullis-lock/testing'

// Short turns: both meet the same load of the machine.
const PAIRS = 100
const [program, rounds = 401, driver = 'ioredis'] = process.argv.slice(2)
const server = await PortcullisServer.create({ program })
const clients = {
  async ioredis() {
    const redis = new Redis(server.url, { protocol: 2 })
    return { client: redis, send: (...words) => redis.call(...words), close: () => redis.disconnect() }
  },
  async 'node-redis'() {
    const redis = createClient({ url: server.url, RESP: 2 })
    await redis.connect()
    return { client: redis, send: (...words) => redis.sendCommand(words), close: () => redis.destroy() }
  },
}
const { client, send, close } = await clients[driver]()
const locks = connect(client)

let owners = 0
const runs = {
  async raw() {
    const owner = `owner-of-one-acquisition:${++owners}`
    const token = await send('LOCK.ACQUIRE', 'raw', owner, '30000')
    await send('LOCK.RELEASE', 'raw', owner, 'TOKEN', String(token))
  },
  async package() {
    const grant = await locks.lock('package', { lease: 30_000 })
    await grant.release()
  },
}
const took = { raw: [], package: [] }
const cpu = { raw: [], package: [] }
for (let round = -30; round < Number(rounds); round++) {
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
  console.log(`${driver}, ${what}: ${raw.toFixed(1)} us raw, ${ours.toFixed(1)} us over the package, ratio ${(ours / raw).toFixed(2)}`)
}
await locks.close()
close()
await server.stop()
