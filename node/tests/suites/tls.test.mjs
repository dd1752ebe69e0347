// TLS: a server whose certificate an authority of the test has signed.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, afterEach, before, beforeEach, test } from 'node:test'
import { UnreachableError, connect } from 'portcullis-lock'
import { PortcullisServer } from 'portcullis-lock/testing'
import { driver, freePorts, locksOf } from './setup.mjs'

const folder = mkdtempSync(join(tmpdir(), 'portcullis-tls-'))
const file = (name) => join(folder, name)
const openssl = (...words) => execFileSync('openssl', words, { stdio: 'pipe' })

// An authority, whose certificate is NAME.crt.
function authority(name) {
  const request = ['-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2', '-subj', `/CN=${name}`]
  openssl('req', ...request, '-keyout', file(`${name}.key`), '-out', file(`${name}.crt`))
  return readFileSync(file(`${name}.crt`))
}

// A certificate for these names, signed by the authority.
function certificate(name, by, names) {
  openssl('req', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-subj', `/CN=${name}`, '-keyout', file(`${name}.key`), '-out', file(`${name}.csr`))
  writeFileSync(file(`${name}.ext`), `subjectAltName=${names}`)
  openssl('x509', '-req', '-in', file(`${name}.csr`), '-CA', file(`${by}.crt`), '-CAkey', file(`${by}.key`), '-CAcreateserial', '-days', '2', '-extfile', file(`${name}.ext`), '-out', file(`${name}.crt`))
}

// Clients need no certificates of their own.
const flags = (port) => ['--tls-port', String(port), '--tls-cert-file', file('server.crt'), '--tls-key-file', file('server.key'), '--tls-auth-clients', 'no']

let server
let ca
let other
let port
const opened = []
before(async () => {
  ca = authority('ca')
  other = authority('other')
  certificate('server', 'ca', 'IP:127.0.0.1,DNS:localhost')
  // Beside a port for TLS, `--port 0` is no port at all.
  const [plain, tls] = await freePorts(2)
  port = tls
  server = await PortcullisServer.create({ port: plain, flags: flags(port) })
})
beforeEach(() => server.reset())
afterEach(async () => {
  for (const locks of opened.splice(0)) await locks.close()
  await server.endTest()
})
after(async () => {
  await server.stop()
  rmSync(folder, { recursive: true, force: true })
})

function open(host, tls, options = {}) {
  const locks = locksOf(`rediss://${host}`, { tls, ...options })
  opened.push(locks)
  return locks
}

async function lockAndWait(locks) {
  const grant = await locks.lock('a')
  const waits = locks.lock('a', { wait: 20_000 })
  await server.untilBlocked(1)
  await grant.release()
  await (await waits).release()
}

test('a lock and a wait over TLS', async () => {
  await lockAndWait(open(`127.0.0.1:${port}`, { ca }))
  await lockAndWait(open(`localhost:${port}`, { ca }))
})

test('the application’s client lends its TLS', async () => {
  const client =
    driver === 'ioredis'
      ? server.client({ port, tls: { ca } })
      : await server.nodeRedis({ socket: { port, tls: true, ca } })
  const locks = connect(client)
  opened.push(locks)
  await lockAndWait(locks)
})

test('a wrong authority is one clear error, at once', async () => {
  for (const [host, tls, reason] of [
    [`127.0.0.1:${port}`, { ca: other }, /unable to verify the first certificate|unable to get local issuer certificate/],
    [`127.0.0.1:${port}`, undefined, /unable to verify the first certificate|unable to get local issuer certificate/],
    [`127.0.0.1:${port},127.0.0.1:${port}`, { ca: other }, /unable to verify the first certificate|unable to get local issuer certificate/],
  ]) {
    const locks = open(host, tls)
    for (const ask of [() => locks.lock('a'), () => locks.lock('a', { wait: 5000 }), () => locks.info('a'), () => locks.latch('l').wait({ wait: 5000 })]) {
      const began = performance.now()
      await assert.rejects(ask(), (error) => {
        assert.ok(error instanceof UnreachableError)
        assert.match(error.message, /the certificate of .*127\.0\.0\.1:\d+ is not accepted \(.*\): give its authority's certificate as `tls: \{ ca \}`/)
        assert.match(error.message, reason)
        return true
      })
      assert.ok(performance.now() - began < 2000)
    }
  }
})

test('a certificate for another name is not accepted', async () => {
  const [plain, secure] = await freePorts(2)
  const error = /the certificate of the server 127\.0\.0\.2:\d+ is not accepted \(.*does not match certificate's altnames.*\): connect to a name that it is for/
  const elsewhere = await PortcullisServer.create({ port: plain, ip: '127.0.0.2', flags: flags(secure) })
  try {
    await assert.rejects(open(`127.0.0.2:${secure}`, { ca }).lock('a'), error)
  } finally {
    await elsewhere.stop()
  }
})

test('a port without TLS is one clear error', async () => {
  await assert.rejects(open(`127.0.0.1:${server.port}`, { ca }).lock('a'), /the server 127\.0\.0\.1:\d+ does not speak TLS on this port: give the port of its `--tls-port`, or use redis:/)
})
