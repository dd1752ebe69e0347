import { connect } from 'portcullis-lock'

const locks = connect('redis://127.0.0.1:6379')

await locks.withLock('order:42', { lease: 30_000, wait: 5000 }, (grant) => {
  console.log(`token ${grant.token}, held for at least another ${grant.remaining()} ms`)
})
await locks.close()
