// Fake timers and the server's clock, under each test runner: the files beside this one bring the runner's own fake timers.
import { equal, ok, rejects } from 'node:assert/strict'

// `fake.start()` enables the fake timers, `fake.timers` is what clock.follow takes, and `fake.stop()` ends them.
export const cases = (fake) => ({
  async 'the hooks do not hang under fake timers'(server) {
    fake.start()
    try {
      await server.clock.freeze()
      const client = server.client()
      const waits = client.blpop('nothing', 30)
      await server.untilBlocked(1)
      await server.clock.advance(30_000)
      equal(await waits, null)
      await rejects(server.untilBlocked(3, 5), /0 clients wait, and not 3/)
      await server.restart()
      await server.reset()
    } finally {
      fake.stop()
    }
  },
  async 'one advance moves the server and the timers'(server) {
    fake.start()
    try {
      await server.clock.follow(fake.timers)
      const locks = server.locks()
      const grant = await locks.lock('a', { lease: 30_000, renew: false })
      const at = Date.now()
      let fired = 0
      setTimeout(() => fired++, 20_000)
      await server.clock.advance(19_000)
      equal(fired, 0)
      ok(await grant.check())
      await server.clock.advance(2000)
      equal(fired, 1)
      equal(Date.now() - at, 21_000)
      equal((await server.clock.info())['unix-ms'], Date.now())
      ok(!grant.isLost)
      await server.clock.advance(9000)
      ok(grant.isLost)
      await rejects(grant.release(), { name: 'NotHeldError' })
    } finally {
      fake.stop()
    }
  },
  async 'renewals are due by the fake timers'(server) {
    fake.start()
    try {
      await server.clock.follow(fake.timers)
      const locks = server.locks()
      const grant = await locks.lock('a', { lease: 30_000 })
      await server.clock.advance(90_000)
      ok(!grant.isLost && (await grant.check()))
      const [holder] = (await locks.info('a')).holders
      ok(holder.held === 90_000 && holder.renewed >= 5, JSON.stringify(holder))
      await grant.release()
    } finally {
      fake.stop()
    }
  },
  async 'a loss is heard while the timers stand still'(server) {
    fake.start()
    try {
      await server.clock.follow(fake.timers)
      const locks = server.locks()
      const grants = [await locks.lock('a', { lease: 300_000 }), await locks.lock('b', { lease: 300_000, renew: false })]
      // No timer of the test can wait here.
      while ((await server.order('PUBSUB', 'CHANNELS', '__portcullis__:lock-lost:*')).length === 0);
      await server.order('DEL', 'a', 'b')
      for (const grant of grants) {
        const error = await grant.lost
        ok(/deleted/.test(error.cause) && grant.signal.aborted, error.cause)
        await rejects(grant.release(), { name: 'NotHeldError' })
      }
      // So is one whose connection closes.
      const kept = await locks.lock('c', { lease: 300_000 })
      const [{ client }] = (await locks.info('c')).holders
      await server.order('CLIENT', 'KILL', 'ID', client)
      const holder = async () => (await locks.info('c')).holders[0]
      for (let now = await holder(); now.client === client || now.gone !== null; now = await holder());
      await server.order('DEL', 'c')
      ok(/deleted/.test((await kept.lost).cause))
      await rejects(kept.release(), { name: 'NotHeldError' })
    } finally {
      fake.stop()
    }
  },
  async 'the runner’s own advance moves the server, too'(server) {
    if (!fake.timers.advanceTimersByTimeAsync) return
    fake.start()
    try {
      await server.clock.follow(fake.timers)
      const before = (await server.clock.info())['unix-ms']
      await fake.timers.advanceTimersByTimeAsync(5000)
      equal((await server.clock.info())['unix-ms'] - before, 5000)
    } finally {
      fake.stop()
    }
  },
  async 'the server follows no longer'(server) {
    const now = (await server.clock.info())['unix-ms']
    ok(Math.abs(now - Date.now()) < 1000)
    const original = fake.timers.advanceTimersByTimeAsync
    fake.start()
    try {
      await server.clock.follow(fake.timers)
      server.clock.unfollow()
      equal(fake.timers.advanceTimersByTimeAsync, original)
    } finally {
      fake.stop()
    }
  },
})
