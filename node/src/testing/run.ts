/** The server that all test files of a run share. */
import { URL_VARIABLE } from './database.js'
import { PortcullisServer, type ServerOptions } from './server.js'

/** More than a run has workers: an empty database takes less than a kilobyte. */
const DATABASES = 1024

/**
 * Starts a server for all test files of a run, each of which takes a database of it by `useDatabase`. It sets the environment variable
 * PORTCULLIS_TEST_URL, which the test runner hands on to its workers. If the variable is set, that server is used, and none is started.
 *
 * @returns What ends it. Without a call the server ends with this process.
 * @throws Error if there is no program, which says how to get it; or if the program does not start.
 */
export async function startForRun(options: ServerOptions = {}): Promise<() => Promise<void>> {
  if (process.env[URL_VARIABLE]) return async () => {}
  const server = await PortcullisServer.create({ ...options, flags: ['--databases', String(DATABASES), ...(options.flags ?? [])] })
  process.env[URL_VARIABLE] = server.url
  return async () => {
    delete process.env[URL_VARIABLE]
    await server.stop()
  }
}
