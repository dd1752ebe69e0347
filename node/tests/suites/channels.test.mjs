// What the package does with the channels on which losses are told, over connections that the test makes up: servers whose numbers of
// connections are equal, and replies that never come.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import { pathToFileURL } from 'node:url'
import { sleep } from './setup.mjs'

const home = dirname(createRequire(import.meta.url).resolve('portcullis-lock/package.json'))
const { Losses } = await import(pathToFileURL(join(home, 'dist/esm/losses.js')))

/** A connection, with its number on a server. */
class FakeLink {
  isClosed = false
  channels = []
  calls = []
  #onClosed = []
  constructor(number, { confirms = true } = {}) {
    this.number = number
    this.confirms = confirms
  }
  onClosed(work) {
    if (this.isClosed) work()
    else this.#onClosed.push(work)
  }
  destroy() {
    if (this.isClosed) return
    this.isClosed = true
    for (const work of this.#onClosed) work()
  }
  keepProcess() {}
  subscribe(channels, heard) {
    this.heard ??= heard
    this.calls.push(['subscribe', ...channels])
    if (!this.confirms) return new Promise((_, reject) => this.onClosed(() => reject(new Error('closed'))))
    this.channels.push(...channels)
    return Promise.resolve()
  }
  unsubscribe(channels) {
    this.calls.push(['unsubscribe', ...channels])
    this.channels = this.channels.filter((channel) => !channels.includes(channel))
    return Promise.resolve()
  }
}

const channel = (number) => `__portcullis__:lock-lost:${number}`
/** Losses over the connections that `next` makes. */
function made(next, timeout = 50) {
  const made = { lost: [], heard: [], closed: 0, opened: [] }
  made.losses = new Losses(
    timeout,
    async () => {
      made.opened.push(next(made.opened.length))
      return made.opened.at(-1)
    },
    (tokens) => made.lost.push([...tokens]),
    (ears) => made.heard.push(ears.size),
    () => made.closed++,
  )
  return made
}

test('connections of two servers that have the same number share a channel', async () => {
  const { losses, opened, lost, heard } = made(() => new FakeLink(1))
  const [old, next] = [new FakeLink(7), new FakeLink(7)]
  const first = losses.follow(old)
  await sleep(5)
  assert.deepEqual(opened[0].channels, [channel(7)])
  const second = losses.follow(next)
  await sleep(5)
  // The first server is gone, and its grant is taken over or ends: the other one is still heard.
  old.destroy()
  losses.leave(first)
  await sleep(5)
  assert.ok(opened[0].channels.includes(channel(7)))
  opened[0].heard('5 broken a')
  opened[0].heard('6 deleted b')
  await sleep(5)
  assert.deepEqual(lost, [[5, 6]])
  next.destroy()
  losses.leave(second)
  await sleep(5)
  assert.deepEqual(opened[0].channels, [])
  assert.deepEqual(heard, [1, 1])
  losses.close()
})

test('a channel stays until the last grant of a connection that closed', async () => {
  const all = made(() => new FakeLink(1))
  const link = new FakeLink(7)
  const ears = [all.losses.follow(link), all.losses.follow(link)]
  await sleep(5)
  link.destroy()
  assert.equal(all.closed, 1)
  all.losses.leave(ears[0])
  await sleep(5)
  assert.deepEqual(all.opened[0].channels, [channel(7)])
  all.losses.leave(ears[1])
  await sleep(5)
  assert.deepEqual(all.opened[0].channels, [])
  all.losses.close()
})

test('a subscription that is never confirmed is made over another connection', async () => {
  const all = made((at) => new FakeLink(at + 1, { confirms: at > 0 }))
  all.losses.follow(new FakeLink(7))
  await sleep(20)
  assert.equal(all.opened.length, 1)
  assert.deepEqual(all.heard, [])
  for (let left = 400; all.opened.length < 2; left--) {
    assert.ok(left > 0, 'there is no other connection')
    await sleep(5)
  }
  await sleep(5)
  assert.ok(all.opened[0].isClosed && !all.opened[1].isClosed)
  assert.deepEqual(all.opened[1].channels, [channel(7)])
  // What was lost in between has to be asked for.
  assert.deepEqual(all.heard, [1])
  all.losses.close()
  assert.ok(all.opened[1].isClosed)
})

test('a connection without a number is followed, and has no channel', async () => {
  const all = made(() => new FakeLink(1))
  const link = new FakeLink(undefined)
  const ear = all.losses.follow(link)
  await sleep(5)
  assert.deepEqual(all.opened[0].calls, [])
  link.destroy()
  assert.equal(all.closed, 1)
  all.losses.leave(ear)
  await sleep(5)
  assert.deepEqual(all.opened[0].calls, [])
  all.losses.close()
})
