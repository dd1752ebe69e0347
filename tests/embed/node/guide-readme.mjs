// Runs the program that README.md and node/README.md show, as it stands but for the server's port.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { readFile, rm, writeFile } from 'node:fs/promises'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { PortcullisServer } from 'portcullis-lock/testing'

test('the first program', async (t) => {
  const server = await PortcullisServer.create()
  t.after(() => server.stop())
  const text = await readFile(new URL('readme-minute.mjs', import.meta.url), 'utf8')
  const readme = await readFile(new URL('../node_modules/portcullis-lock/README.md', import.meta.url), 'utf8')
  assert.ok(readme.includes(text), 'node/README.md shows another program')
  assert.ok(text.includes('127.0.0.1:6379'))

  // Beside this file, where it finds the package.
  const program = new URL(`readme-minute-${server.port}.mjs`, import.meta.url)
  t.after(() => rm(program))
  await writeFile(program, text.replace('6379', server.port))
  const { stdout } = await promisify(execFile)(process.execPath, [program.pathname], { timeout: 30_000 })
  assert.match(stdout, /^token \d+, held for at least another 28\d{3} ms\n$/)
})
