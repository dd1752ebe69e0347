// As holder.py, by the JavaScript package: node holder.mjs URL PREFIX COUNT LEASE_S GRACE_S. A grace of 0 is a session without a name.
import { pathToFileURL } from 'node:url'
import { createRequire } from 'node:module'
import { join } from 'node:path'

const require = createRequire(join(process.cwd(), 'index.js'))
const { connect } = await import(pathToFileURL(require.resolve('portcullis-lock')))

const [url, prefix, count, lease, grace] = process.argv.slice(2)
const say = (what, name, ...more) => process.stdout.write(`${[what, name, (Number(process.hrtime.bigint()) / 1e9).toFixed(6), ...more].join(' ')}\n`)

const locks = connect(url, { driver: 'ioredis' })
const session = Number(grace) > 0 ? { grace: Number(grace) * 1000 } : true
const names = Array.from({ length: Number(count) }, (_, number) => `${prefix}:${number}`)
const grants = await Promise.all(names.map((name) => locks.lock(name, { lease: Number(lease) * 1000, wait: 30_000, session })))
for (const grant of grants) {
  say('held', grant.name)
  grant.on('lost', (error) => say('lost', grant.name, error.cause))
}
process.stdin.resume()
await new Promise((resolve) => process.stdin.once('end', resolve))
for (const grant of grants) if (!grant.isLost) say('over', grant.name)
await Promise.all(grants.map((grant) => grant.release().catch((error) => process.stderr.write(`${grant.name}: ${error.message}\n`))))
await locks.close()
process.exit(0)
