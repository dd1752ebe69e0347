// The module for Testcontainers, as far as it goes without containers: what is to be started, and the server that the command starts.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { test } from 'node:test'
import { connect, programPath } from 'portcullis-lock'
import { PortcullisContainer, StartedPortcullisContainer } from 'portcullis-lock/testcontainers'
import { AbstractStartedContainer, GenericContainer } from 'testcontainers'

const commandOf = (container) => container.createOpts.Cmd

const LISTENS = /listening on 0\.0\.0\.0:(\d+)\D/

test('image, port, wait and command', () => {
  const container = new PortcullisContainer('registry.example/portcullis:0.1.0')
  assert.ok(container instanceof GenericContainer)
  assert.equal(container.imageName.string, 'registry.example/portcullis:0.1.0')
  assert.deepEqual(container.exposedPorts, [6379])
  assert.deepEqual(commandOf(container), ['serve', '--test-mode', '--bind', '0.0.0.0', '--port', '6379', '--protected-mode', 'no'])
  assert.equal(container.withPassword('secret').withFlags('--databases', '64'), container)
  assert.deepEqual(commandOf(container).slice(6), ['--requirepass', 'secret', '--databases', '64'])
})

test('what runs has a URL', () => {
  const running = { getHost: () => 'docker.example', getMappedPort: (port) => port + 30_000 }
  const started = new StartedPortcullisContainer(running, undefined)
  assert.ok(started instanceof AbstractStartedContainer)
  assert.deepEqual([started.getHost(), started.getPort(), started.getPassword()], ['docker.example', 36_379, ''])
  assert.equal(started.getConnectionUrl(), 'redis://docker.example:36379')
  assert.equal(new StartedPortcullisContainer(running, 'p/s').getConnectionUrl(), 'redis://:p%2Fs@docker.example:36379')
})

test('the program says what is waited for, and lets clients in', async () => {
  for (const password of [undefined, 'p:ss/wörd']) {
    const container = new PortcullisContainer('portcullis')
    if (password !== undefined) container.withPassword(password)
    // A free port instead of the container's own.
    const child = spawn(programPath(), [...commandOf(container), '--port', '0', '--end-with-stdin'], { stdio: ['pipe', 'pipe', 'pipe'] })
    try {
      let said = ''
      const ready = new Promise((resolve, reject) => {
        for (const stream of [child.stdout, child.stderr]) {
          stream.on('data', (text) => {
            said += text
            // The wait of Testcontainers looks at one line after the other. The line with the address may come by the other stream.
            const isReady = said.split('\n').some((line) => container.waitStrategy.message.test(line))
            if (isReady && LISTENS.test(said)) resolve()
          })
        }
        child.once('exit', () => reject(new Error(said)))
      })
      await ready
      const port = Number(LISTENS.exec(said)?.[1])
      const started = new StartedPortcullisContainer({ getHost: () => '127.0.0.1', getMappedPort: () => port }, password)
      const locks = connect(started.getConnectionUrl(), { timeout: 2000 })
      const grant = await locks.lock('a')
      assert.ok(grant.token > 0)
      await grant.release()
      await locks.close()
    } finally {
      child.removeAllListeners('exit')
      child.kill('SIGKILL')
      await once(child, 'exit')
    }
  }
})
