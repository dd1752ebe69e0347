// What every Node client of replicated nodes does: it works, its leader is killed, and it goes on. The runner (../nodes.py) kills the
// leaders when all suites have said `ready`, and says `killed`.
import { basename } from 'node:path'
import { createInterface } from 'node:readline'
import { assert, equal, sleep } from './suite.mjs'

const addresses = (ports) => ports.split(',').map((port) => ({ host: '127.0.0.1', port: Number(port) }))

// Nodes that are not in a cluster's mode, and others that are.
export const sentinels = addresses(process.env.SENTINEL_PORTS)
export const cluster = addresses(process.env.CLUSTER_PORTS)

const LEASE_MS = 600_000
// All suites share the nodes.
const suite = basename(process.argv[1], '.mjs')
let killedAt

// Repeats a request when the client gives up. It must have an id, or do no harm the second time.
export const repeated = (call) => async (key, ...words) => {
  const deadline = Date.now() + 5000
  for (;;) {
    try {
      return await call(key, ...words)
    } catch (error) {
      if (Date.now() > deadline || /^(NOTHELD|WRONGTYPE|STALE)/.test(error.message)) throw error
      await sleep(20)
    }
  }
}

// Takes and releases locks before the kill and after it. Each request has an id, so that it can be repeated.
async function drive(name, connect, ready) {
  const call = await connect()
  const [kept, busy, plain] = ['kept', 'busy', 'plain'].map((use) => `${use}:${suite}:${name}`)
  const number = (reply) => BigInt(reply)
  const token = number(await call('LOCK.ACQUIRE', kept, 'me', LEASE_MS, 'REQUEST', '1'))
  equal(await call('SET', plain, 'value'), 'OK')
  let [last, after, longestMs] = [token, 0, 0]
  for (let round = 1; after < 20; round++) {
    const began = Date.now()
    const next = number(await call('LOCK.ACQUIRE', busy, 'me', LEASE_MS, 'REQUEST', `a${round}`))
    assert(next > last, `token ${next} after ${last}`)
    last = next
    equal(await call('LOCK.RELEASE', busy, 'me', 'TOKEN', last, 'REQUEST', `r${round}`), 0)
    if (round === 5) ready()
    longestMs = Math.max(longestMs, Date.now() - began)
    if (killedAt && began > killedAt) after++
    await sleep(5)
  }
  equal(await call('LOCK.CHECK', kept, token), 1)
  equal(await call('LOCK.ACQUIRE', kept, 'other', 1000), null)
  equal(await call('LOCK.RELEASE', kept, 'me', 'TOKEN', token), 0)
  assert(number(await call('LOCK.ACQUIRE', kept, 'other', 1000)) > last)
  equal(await call('GET', plain), 'value')
  return longestMs
}

// Drives all clients at once; ends the process. A client is a function that returns `call(...words)`.
export async function run(clients) {
  let failed = false
  createInterface({ input: process.stdin }).on('line', (line) => {
    if (line === 'killed') killedAt = Date.now()
  })
  process.on('unhandledRejection', (error) => {
    console.log(`not ok unhandled rejection: ${error?.stack ?? error}`)
    process.exit(1)
  })
  const begun = []
  const driven = Object.entries(clients).map(async ([name, connect]) => {
    let ready
    begun.push(new Promise((resolve) => (ready = resolve)))
    const late = sleep(40_000).then(() => Promise.reject(new Error('it hangs')))
    late.catch(() => {})
    try {
      const longestMs = await Promise.race([drive(name, async () => {
        const call = await connect()
        return (...words) => call(...words.map(String))
      }, ready), late])
      console.log(`ok ${name} (${(longestMs / 1000).toFixed(1)} s without a reply)`)
    } catch (error) {
      failed = true
      console.error(error)
      console.log(`not ok ${name}: ${error.message}`)
      ready()
    }
  })
  await Promise.all(begun)
  console.log('ready')
  await Promise.all(driven)
  process.exit(failed ? 1 : 0)
}
