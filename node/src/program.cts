/** Finds the program `portcullis`. It is a CommonJS module, so that both builds of this package can look packages up. */
import fs = require('node:fs')
import path = require('node:path')

const PLATFORM = `portcullis-lock-${process.platform}-${process.arch}`

/** The program in this platform's package; undefined if that is not installed. */
function packaged(): string | undefined {
  try {
    return require.resolve(`${PLATFORM}/bin/portcullis`)
  } catch {
    return undefined
  }
}

function onPath(): string | undefined {
  const folders = (process.env['PATH'] ?? '').split(path.delimiter).filter(Boolean)
  return folders.map((folder) => path.join(folder, 'portcullis')).find((file) => isProgram(file) && !isShim(file))
}

function isProgram(file: string): boolean {
  try {
    fs.accessSync(file, fs.constants.X_OK)
    return fs.statSync(file).isFile()
  } catch {
    return false
  }
}

/** Whether a file on the PATH is this package's own `bin/portcullis.cjs`, which npm links there, and which asks this module again. */
function isShim(file: string): boolean {
  return fs.realpathSync(file).endsWith('portcullis.cjs')
}

/**
 * The path of the program `portcullis`: what the environment variable PORTCULLIS names, or the program in this platform's package, or
 * the one on the PATH.
 *
 * @throws Error if there is none; it says how to get it.
 */
function programPath(): string {
  const named = process.env['PORTCULLIS']
  if (named) {
    if (isProgram(named)) return named
    throw new Error(`PORTCULLIS names ${named}, which is no program`)
  }
  const found = packaged() ?? onPath()
  if (found) return found
  throw new Error(
    `the program portcullis is not installed: the package ${PLATFORM} is missing (was npm run with --omit=optional?), and no portcullis ` +
      'is on the PATH. Install the package, or set PORTCULLIS to the path of the program (`cargo install portcullis` builds it).',
  )
}

export = { programPath }
