/** Loads a package that only some tests need, when they need it. */
function load(name: 'ioredis' | 'redis' | 'testcontainers'): any {
  try {
    return require(name)
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    if (code !== 'MODULE_NOT_FOUND' || !message.startsWith(`Cannot find module '${name}'`)) throw error
    const what = name === 'testcontainers' ? 'portcullis-lock/testcontainers' : 'this client'
    throw new Error(`${what} needs the package ${name}: npm install --save-dev ${name}`)
  }
}

export = load
