// What the suites share: the server that the runner started, or one of their own, and the client library to test.
import { once } from 'node:events'
import { createServer } from 'node:net'
import { after, afterEach, before, beforeEach } from 'node:test'
import { connect } from 'portcullis-lock'
import { PortcullisServer } from 'portcullis-lock/testing'

// The client library: the runner runs each suite with both.
export const driver = process.env.DRIVER ?? 'ioredis'

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// The same, without keeping the process alive: for the longest wait of a race.
export const atMost = (ms) => new Promise((resolve) => setTimeout(resolve, ms).unref())

// Resolves with the reason when the signal is aborted, at once if it is. The news of a loss may come before the reply to what caused it, and the event
// of a signal that is aborted comes no more.
export const aborted = async (signal) => {
  if (!signal.aborted) await once(signal, 'abort')
  return signal.reason
}

// Ports that are free, below those that the system gives to connections: one of these could take a port before its server does.
export const freePorts = async (count) => {
  const ports = new Set()
  while (ports.size < count) {
    const port = 10_000 + Math.floor(Math.random() * 22_000)
    const probe = createServer().listen(port, '127.0.0.1')
    // Another one listens there.
    const free = await once(probe, 'listening').then(() => true, () => false)
    if (!free) continue
    ports.add(port)
    await new Promise((resolve) => probe.close(resolve))
  }
  return [...ports]
}

export const workers = (count, work) => Promise.all(Array.from({ length: count }, (_, number) => work(number)))

// A server in test mode, and locks of it. FLAGS are further flags of the server, such as those of durability.
export const startServer = (options = {}) => {
  const flags = [...(process.env.FLAGS ?? '').split(' ').filter(Boolean), ...(options.flags ?? [])]
  return PortcullisServer.create({ ...options, flags })
}

export const locksOf = (url, options = {}) => connect(url, { driver, ...options })

// The server and its locks of a suite that calls `useServer`, empty and new for each test.
export let server
export let locks
export const useServer = (options) => {
  before(async () => {
    server = await startServer()
  })
  beforeEach(async () => {
    await server.reset()
    locks = server.locks({ driver, ...options })
  })
  afterEach(() => server.endTest())
  after(() => server.stop())
}

// A resource that counts who is inside, and whose tokens must grow.
export class Witness {
  inside = 0
  most = 0
  entries = 0
  lastToken = 0
  faults = []
  async visit(token, work) {
    this.inside++
    this.entries++
    this.most = Math.max(this.most, this.inside)
    if (token <= this.lastToken) this.faults.push(`token ${token} after ${this.lastToken}`)
    this.lastToken = token
    await work()
    this.inside--
  }
}
