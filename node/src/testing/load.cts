/** Loads a client library when a test asks for a client: neither is needed before. */
function load(name: 'ioredis' | 'redis'): any {
  try {
    return require(name)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'MODULE_NOT_FOUND') throw error
    throw new Error(`this client needs the package ${name}: npm install --save-dev ${name}`)
  }
}

export = load
