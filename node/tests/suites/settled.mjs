// A test ends while a request that it gave up is cleaned up, and each attempt at that fails. Nothing else keeps this process.
import assert from 'node:assert/strict'
import { UnreachableError } from 'portcullis-lock'
import { driver, startServer } from './setup.mjs'

const server = await startServer()
// On a busy machine it takes a while to connect, and a request that was never sent leaves nothing to clean up.
const locks = server.locks({ driver, timeout: 1500 })
await server.faults.add('lost', 'DROP-REPLY', { on: 'lock.acquire', times: 1 })
// Before the attempts can begin.
await server.faults.add('closed', 'CLOSE', { on: 'multi', times: 4 })
await assert.rejects(locks.lock('a', { wait: 100 }), UnreachableError)
assert.equal(await server.faults.fired('lost'), 1)
await server.endTest()
assert.equal(await server.faults.fired('closed'), 4)
await server.stop()
console.log('done')
