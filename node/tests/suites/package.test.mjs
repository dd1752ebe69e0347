// The package as users have it: ES modules and CommonJS, the packages for platforms, `npx portcullis`, and a missing program.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { after, test } from 'node:test'

const require = createRequire(import.meta.url)
const home = dirname(require.resolve('portcullis-lock/package.json'))
const folder = mkdtempSync(join(tmpdir(), 'portcullis-package-'))
after(() => rmSync(folder, { recursive: true, force: true }))

const node = (...args) => spawnSync(process.execPath, args, { encoding: 'utf8', env: { PATH: '/nowhere' }, cwd: folder })

// An application's folder with the package, and without or with the platform's package.
function application(name, withProgram) {
  const path = join(folder, name)
  mkdirSync(join(path, 'node_modules'), { recursive: true })
  cpSync(home, join(path, 'node_modules/portcullis-lock'), { recursive: true })
  writeFileSync(join(path, 'package.json'), '{ "type": "module" }')
  if (withProgram) {
    const out = join(path, `node_modules/portcullis-lock-${process.platform}-${process.arch}`)
    const made = node(join(home, 'scripts/platform-package.mjs'), process.env.PORTCULLIS, out)
    assert.equal(made.status, 0, made.stderr)
  }
  return path
}

test('CommonJS has the same names', async () => {
  const paths = ['', '/testing', '/testing/global-setup']
  // Testcontainers itself needs Node.js 20.
  if (Number(process.versions.node.split('.')[0]) >= 20) paths.push('/testcontainers')
  for (const name of paths.map((path) => `portcullis-lock${path}`)) {
    const names = (module) => Object.keys(module).filter((each) => each !== 'default' && each !== 'module.exports' && each !== '__esModule').sort()
    assert.deepEqual(names(require(name)), names(await import(name)))
  }
})

test('a lock from CommonJS', async () => {
  const { PortcullisServer } = require('portcullis-lock/testing')
  const { connect } = require('portcullis-lock')
  const server = await PortcullisServer.create()
  for (const driver of ['ioredis', 'node-redis']) {
    const locks = connect(server.url, { driver })
    await locks.withLock('a', {}, (grant) => assert.ok(grant.token > 0))
    await locks.close()
  }
  assert.equal(await server.getHost(), '127.0.0.1')
  assert.equal(await server.getPort(), server.port)
  assert.equal(await server.stop(), true)
})

test('the program comes with the platform’s package', () => {
  const path = application('complete', true)
  const found = node('--input-type=module', '-e', `import { programPath } from '${path}/node_modules/portcullis-lock/dist/esm/index.js'; console.log(programPath())`)
  assert.match(found.stdout, /portcullis-lock-linux-\w+\/bin\/portcullis\n$/, found.stderr)
  const shim = node(join(path, 'node_modules/portcullis-lock/bin/portcullis.cjs'), '--version')
  assert.match(shim.stdout, /^portcullis \d/, shim.stderr)
  assert.equal(node(join(path, 'node_modules/portcullis-lock/bin/portcullis.cjs'), 'no-such-command').status, 2)
})

test('a missing program is one error that says how to get it', () => {
  const path = application('without', false)
  const shim = node(join(path, 'node_modules/portcullis-lock/bin/portcullis.cjs'), 'serve')
  assert.equal(shim.status, 127)
  assert.match(shim.stderr, /^portcullis: the program portcullis is not installed: the package portcullis-lock-\S+ is missing.*Install the package, or set PORTCULLIS/)
  const tests = `import { PortcullisServer } from '${path}/node_modules/portcullis-lock/dist/esm/testing/index.js'; await PortcullisServer.create().catch((error) => console.log(error.message))`
  assert.match(node('--input-type=module', '-e', tests).stdout, /^the program portcullis is not installed/)
})

test('the shim on the PATH is not the program', () => {
  const path = application('linked', false)
  mkdirSync(join(path, 'bin'))
  symlinkSync(join(path, 'node_modules/portcullis-lock/bin/portcullis.cjs'), join(path, 'bin/portcullis'))
  const run = spawnSync(process.execPath, [join(path, 'bin/portcullis')], { encoding: 'utf8', env: { PATH: join(path, 'bin') } })
  assert.equal(run.status, 127, run.stderr)
})

test('a missing client library is one error that says what to install', () => {
  const path = application('no client', false)
  const program = `import { connect } from '${path}/node_modules/portcullis-lock/dist/esm/index.js'; await connect('redis://127.0.0.1:1').lock('a').catch((error) => console.log(error.message))`
  assert.match(node('--input-type=module', '-e', program).stdout, /needs a Redis client: npm install ioredis \(or: npm install redis\)/)
})

test('a missing package testcontainers is one error that says what to install', () => {
  const path = application('no testcontainers', false)
  const error = /portcullis-lock\/testcontainers needs the package testcontainers: npm install --save-dev testcontainers/
  const module = `${path}/node_modules/portcullis-lock/dist/esm/testcontainers.js`
  assert.match(node('--input-type=module', '-e', `await import('${module}').catch((error) => console.log(error.message))`).stdout, error)
  assert.match(node('--input-type=module', '-e', `import '${module}'`).stderr, error)
  assert.match(node('-e', `require('${module.replace('esm', 'cjs')}')`).stderr, error)
})

test('nothing runs at the installation', () => {
  const manifest = JSON.parse(readFileSync(join(home, 'package.json'), 'utf8'))
  for (const script of ['preinstall', 'install', 'postinstall', 'prepare']) assert.equal(manifest.scripts[script], undefined)
  assert.deepEqual(Object.keys(manifest.dependencies ?? {}), [])
})
