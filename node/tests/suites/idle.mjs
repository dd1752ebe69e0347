// Holds a lock for longer than it runs: the process must end by itself, with the lock still renewed until then.
import { locksOf } from './setup.mjs'

const locks = locksOf(process.argv[2])
const grant = await locks.lock('idle', { lease: 60_000 })
const session = await locks.lock('idle session', { session: true })
await grant.release()
if (session.remaining() > 0) console.log('done')
