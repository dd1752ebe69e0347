// What an application imports, with an older compiler, an older target and other ways to find modules. It is compiled only.
import { type Grant, type Locks, LockError, NotAcquiredError, connect } from 'portcullis-lock'
import { type PortcullisServer, useServer } from 'portcullis-lock/testing'
import setup from 'portcullis-lock/testing/global-setup'

const locks: Locks = connect('redis://127.0.0.1:6379', { driver: 'ioredis' })

export async function work(server: PortcullisServer): Promise<number> {
  const grant: Grant = await locks.lock('a', { wait: Infinity, lease: 1000 })
  const token: number = await locks.withLock('b', (other) => other.token)
  const error: unknown = new LockError('an error', { cause: grant })
  await grant.release()
  return error instanceof NotAcquiredError ? error.holders.length : token + server.port
}
// @ts-expect-error A variable of the environment may be unset.
export const unset = () => connect(process.env['REDIS_URL'])
export { setup, useServer }
