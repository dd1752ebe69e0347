// What fails at once, with a text that says what to do: a database, a log-in, a port or an argument that is wrong, and a name that a plain key has.
import assert from 'node:assert/strict'
import { createServer } from 'node:net'
import { after, test } from 'node:test'
import { Redis } from 'ioredis'
import { createClient } from 'redis'
import { LockError, NotAcquiredError, NotPortcullisError, UnreachableError, connect } from 'portcullis-lock'
import { PortcullisServer } from 'portcullis-lock/testing'
import { driver, locks, locksOf, server, useServer } from './setup.mjs'

useServer()

const opened = []
after(() => Promise.all(opened.map((each) => each.close())))
const open = (to, options) => {
  opened.push(typeof to === 'string' ? locksOf(to, options) : connect(to, options))
  return opened.at(-1)
}
const url = (login, db = 0) => `redis://${login}127.0.0.1:${server.port}/${db}`

// All kinds of requests and connections, each of which opens its own.
const requests = [
  (locks) => locks.lock('a'),
  (locks) => locks.lock('a', { wait: 5000 }),
  (locks) => locks.lock('a', { wait: Infinity }),
  (locks) => locks.lock('a', { session: true }),
  (locks) => locks.lock('a', { session: { grace: 1000 }, wait: 5000 }),
  (locks) => locks.all(['a', 'b']),
  (locks) => locks.semaphore('s', 2).acquire(),
  (locks) => locks.latch('l').wait(),
  (locks) => locks.latch('l').down(),
  (locks) => locks.info('a'),
]
async function refused(locks, code, text) {
  for (const request of requests) {
    const began = performance.now()
    await assert.rejects(request(locks), (error) => {
      assert.ok(error instanceof LockError && !(error instanceof UnreachableError), error.stack)
      assert.equal(error.code, code)
      assert.match(error.message, text)
      return true
    })
    assert.ok(performance.now() - began < 3000)
  }
}

test('a database that does not exist', async () => {
  const error = /DB index is out of range\): give connect\(\) a database that the server has/
  await refused(open(url('', 99)), 'ERR', error)
  // Two addresses of one server, which is asked whether it leads.
  await refused(open(`redis://127.0.0.1:${server.port},127.0.0.1:${server.port}/99`), 'ERR', error)
  const client = driver === 'ioredis' ? new Redis(url('', 99), { lazyConnect: true }) : createClient({ url: url('', 99) })
  await refused(open(client), 'ERR', error)
  assert.deepEqual(await server.leakedLocks(), [])
})

test('a connection that is opened later has the database, too', async () => {
  await server.order('ACL', 'SETUSER', 'ann', 'on', '>secret', '~*', '&*', '+@all')
  const own = open(url('ann:secret@', 3))
  const grant = await own.lock('a')
  assert.equal((await server.order('FAULT', 'LEAKS')).length, 1)
  await server.order('ACL', 'SETUSER', 'ann', '-select')
  // The connections that wait, that subscribe and that are idle all break.
  await server.order('CLIENT', 'KILL', 'USER', 'ann')
  await refused(own, 'NOPERM', /NOPERM .*: let the user do that/)
  await server.order('ACL', 'SETUSER', 'ann', '+select')
  assert.ok(await grant.check())
  await grant.release()
  const held = await own.lock('a')
  assert.equal(Number((await server.order('FAULT', 'LEAKS'))[0][1]), 3)
  await held.release()
  await server.order('ACL', 'DELUSER', 'ann')
})

test('a log-in that is wrong', async () => {
  await server.order('ACL', 'SETUSER', 'ann', 'on', '>secret', '~*', '&*', '+@all')
  const error = /refuses the connection \(WRONGPASS .*\): check the user and the password/
  await refused(open(url('ann:wrong@')), 'WRONGPASS', error)
  await refused(open(url('nobody:secret@')), 'WRONGPASS', error)
  // A node that is gone does not change that.
  await refused(open(`redis://ann:wrong@127.0.0.1:1,127.0.0.1:${server.port}`), 'WRONGPASS', error)
  await server.order('ACL', 'DELUSER', 'ann')
})

test('a password that is missing', async () => {
  const guarded = await PortcullisServer.create({ flags: ['--requirepass', 'secret'] })
  try {
    const error = /NOAUTH .*: give connect\(\) a password, as in redis:/
    await refused(open(`redis://127.0.0.1:${guarded.port}`), 'NOAUTH', error)
    await refused(open(`redis://127.0.0.1:${guarded.port},127.0.0.1:${guarded.port}`), 'NOAUTH', error)
  } finally {
    await guarded.stop()
  }
})

test('a port of another protocol', async () => {
  const web = createServer((socket) => socket.on('error', () => {}).once('data', () => socket.end('HTTP/1.1 400 Bad Request\r\n\r\n')))
  await new Promise((resolve) => web.listen(0, '127.0.0.1', resolve))
  const own = open(`redis://127.0.0.1:${web.address().port}`)
  for (const options of [{}, { wait: 5000 }]) {
    const began = performance.now()
    await assert.rejects(own.lock('a', options), (error) => {
      assert.ok(error instanceof NotPortcullisError, error.stack)
      assert.match(error.message, /what answers at 127\.0\.0\.1:\d+ does not speak Redis's protocol/)
      return true
    })
    assert.ok(performance.now() - began < 3000)
  }
  web.close()
})

test('a plain key in the way', async () => {
  await server.order('SET', 'plain', 'x')
  await server.order('SADD', 'set', 'x')
  const error = (text) => (error) => {
    assert.ok(error instanceof NotAcquiredError)
    assert.match(error.message, text)
    assert.deepEqual(error.holders, [])
    return true
  }
  await assert.rejects(locks.lock('plain'), error(/'plain' was not granted at once; .*: a plain key of this name is in the way \(string\), until it is deleted/))
  await assert.rejects(locks.lock('plain', { wait: 20 }), error(/was not granted within 20 ms: a plain key of this name is in the way \(string\)/))
  await assert.rejects(locks.all(['a', 'set']), error(/a plain key 'set' is in the way \(set\)/))
  await assert.rejects(locks.semaphore('plain', 2).acquire(), error(/a plain key of this name/))
  // A plain key may be another client's lock: the wait goes on until it is gone.
  assert.equal(await locks.tryLock('plain'), null)
  const waits = locks.lock('plain', { wait: Infinity })
  await server.untilBlocked(1)
  await server.order('DEL', 'plain')
  await (await waits).release()
})

test('connect() with something else', async () => {
  const text = /connect\(\) takes the server's URL, such as 'redis:.*, a client of ioredis, or a client of node-redis/
  for (const to of [null, undefined, '']) assert.throws(() => connect(to), (error) => error instanceof TypeError && text.test(error.message) && /is an environment variable unset\?/.test(error.message))
  for (const to of [{}, [], 5, () => {}, true]) assert.throws(() => connect(to), (error) => error instanceof TypeError && text.test(error.message), String(to))
  assert.throws(() => connect('http://127.0.0.1'), /is no URL of a server; the forms are redis:/)
  assert.throws(() => connect('redis://127.0.0.1?foo=1'), /has the parameter "foo"; there are user, username, password, db, name, client_name/)
  assert.throws(() => connect('redis://127.0.0.1?password=secret&foo=1'), (error) => !error.message.includes('secret'))
  const named = open(`${server.url}?name=of-the-URL`)
  const grant = await named.lock('a')
  assert.equal((await named.info('a')).holders[0].clientName, 'of-the-URL')
  await grant.release()
  await connect().close()
  await connect(undefined ?? 'redis://127.0.0.1', undefined).close()
  for (const [options, kind, text] of [
    [{ timeuot: 5 }, TypeError, /connect\(\) has no option "timeuot"; there are driver, name, tls, connectTimeout, timeout/],
    [5, TypeError, /the options of connect\(\) are an object with driver/],
    [{ driver: 'redis' }, TypeError, /driver must be 'ioredis' or 'node-redis', not "redis"/],
    [{ timeout: '5' }, RangeError, /timeout must be a whole number from 1 on, not "5"/],
    [{ name: 5 }, TypeError, /name must be a text, not 5/],
    [{ name: 'a b' }, TypeError, /name must be of printable ASCII without blanks, not "a b"/],
    [{ tls: true }, TypeError, /tls must be an object/],
  ]) {
    assert.throws(() => connect(server.url, options), (error) => error instanceof kind && text.test(error.message), JSON.stringify(options))
  }
})

test('options that are unknown or of another type', async () => {
  for (const [options, kind, text] of [
    [{ timeout: 5 }, TypeError, /a lock has no option "timeout"; there are lease, wait, session, renew, signal, owner, shared, delay, maxHold/],
    [{ permits: 2 }, TypeError, /a lock has no option "permits"/],
    [5000, TypeError, /the options of a lock are an object with lease, .*, and not 5000/],
    [null, TypeError, /and not null/],
    [{ wait: '5' }, RangeError, /wait must be a number of milliseconds from 0 on, or Infinity, and not "5"/],
    [{ wait: NaN }, RangeError, /not NaN/],
    [{ lease: '5' }, RangeError, /lease \(ms\) must be a whole number from 1 on, not "5"/],
    [{ lease: Infinity }, RangeError, /not Infinity/],
    [{ owner: 5 }, TypeError, /owner must be a text, not 5/],
    [{ shared: 'no' }, TypeError, /shared must be true or false, not "no"/],
    [{ renew: 0 }, TypeError, /renew must be true or false/],
    [{ session: 5 }, TypeError, /session must be true, false or \{ grace: milliseconds \}/],
    [{ session: { grace: '5' } }, RangeError, /session.grace/],
    [{ session: { grase: 5 } }, TypeError, /session has no option "grase"; there are grace/],
    [{ signal: new AbortController() }, TypeError, /signal must be an AbortSignal/],
  ]) {
    const isMeant = (error) => error instanceof kind && text.test(error.message)
    await assert.rejects(locks.lock('a', options), isMeant, JSON.stringify(options))
    await assert.rejects(locks.tryLock('a', options), isMeant)
    await assert.rejects(locks.withLock('a', options, () => {}), isMeant)
  }
  await assert.rejects(locks.all(['a'], { shared: true }), /several locks has no option "shared"|several locks/)
  await assert.rejects(locks.all('ab'), /several locks are given as a list of names/)
  await assert.rejects(locks.semaphore('s', 2).acquire({ owner: 'ann' }), /a semaphore has no option "owner"/)
  assert.throws(() => locks.semaphore('s'), RangeError)
  assert.throws(() => locks.latch(5), /the name of a lock must be a text, not 5/)
  await assert.rejects(locks.latch('l').wait({ timeout: 5 }), /wait\(\) has no option "timeout"; there are wait, signal/)
  await assert.rejects(locks.latch('l').wait({ wait: '5' }), RangeError)
  await assert.rejects(locks.latch('l').set(1, { px: 5 }), /set\(\) has no option "px"/)
  await assert.rejects(locks.throttle('api', { max: 5 }), /throttle\(\) has no option "max"/)
  await assert.rejects(locks.lock(), /the name of a lock must be a text, not undefined/)
  await assert.rejects(locks.info(), TypeError)
  await assert.rejects(locks.withLock('a'), /withLock\(\) takes the name of the lock, its options, and the function/)
  await assert.rejects(locks.withLock('a', {}), /withLock\(\) takes/)
  assert.deepEqual(await server.leakedLocks(), [])
})

test('what is left out, and an empty name', async () => {
  assert.equal(await locks.withLock('a', (grant, signal) => (signal.aborted ? '' : grant.name)), 'a')
  await (await locks.lock('a', { wait: undefined, timeout: undefined, owner: '' })).release()
  // The server takes any name.
  const grant = await locks.lock('')
  assert.equal(await locks.tryLock(''), null)
  await grant.release()
})
