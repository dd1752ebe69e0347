/** Starts the server's process. It ends with this process, even if that is killed: it watches its standard input. */
import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import program from '../program.cjs'
import { networkNow, pause } from '../time.js'

/** How to start a server. */
export interface StartOptions {
  /** Further flags of `portcullis serve`. */
  flags?: readonly string[]
  /** The program; otherwise `programPath()`. */
  program?: string
  /** The port; a free one unless given. */
  port?: number
  /** The address to listen on; 127.0.0.1 unless given. */
  ip?: string
  /** Milliseconds for the start; 10,000 unless given. */
  patience?: number
}

/** A process that runs. */
export interface Started {
  child: ChildProcess
  /** Resolves when the process has ended. */
  ended: Promise<string>
  host: string
  port: number
}

/**
 * Starts a server in test mode.
 *
 * @throws Error if there is no program, which says how to get it; or if the program does not start, with what it printed.
 */
export async function startProcess(options: StartOptions): Promise<Started> {
  const { flags = [], port = 0, ip = '127.0.0.1', patience = 10_000 } = options
  const path = options.program ?? program.programPath()
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-'))
  const ready = join(folder, 'ready')
  const fixed = ['serve', '--test-mode', '--end-with-stdin', '--port', String(port), '--bind', ip, '--ready-file', ready]
  const child = spawn(path, [...fixed, ...flags], { stdio: ['pipe', 'pipe', 'pipe'] })
  let said = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => (said = (said + text).slice(-10_000)))
  let gone: string | undefined
  const ended = new Promise<string>((resolve) => {
    child.on('error', (error) => resolve((gone = error.message)))
    child.on('exit', (code, signal) => resolve((gone = `it ended with ${code ?? signal}`)))
  })
  child.stdin.on('error', () => {})
  // The server does not keep this process alive.
  child.unref()
  for (const stream of [child.stdin, child.stdout, child.stderr]) (stream as unknown as { unref(): void }).unref()
  const end = networkNow() + patience
  try {
    for (;;) {
      const address = read(ready)
      if (address) {
        const colon = address.lastIndexOf(':')
        return { child, ended, host: address.slice(0, colon).replace(/^\[|\]$/g, ''), port: Number(address.slice(colon + 1)) }
      }
      if (gone !== undefined || networkNow() > end) {
        child.kill('SIGKILL')
        throw new Error(`${path} does not start: ${gone ?? 'it is not ready in time'}\n${said}`)
      }
      await pause(1)
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8').trim()
  } catch {
    // The server writes it when it accepts connections.
    return ''
  }
}
