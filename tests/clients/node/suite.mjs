// What every Node suite shares: where the server is, cases that report one line each, and a witness of mutual exclusion.
// A case prints `ok NAME`, `not ok NAME: why` or `skip NAME: why`; the runner (../run.py) counts the lines.

export const host = process.env.SERVER_HOST ?? '127.0.0.1'
export const port = Number(process.env.SERVER_PORT ?? 6379)
// Ports of several independent servers, for RedLock.
export const ports = (process.env.SERVER_PORTS ?? String(port)).split(',').map(Number)
export const protocol = Number(process.env.PROTOCOL ?? 2)

export class Skip extends Error {}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

export function assert(condition, message = 'assertion failed') {
  if (!condition) throw new Error(message)
}

export function equal(actual, expected) {
  const [left, right] = [JSON.stringify(actual), JSON.stringify(expected)]
  assert(left === right, `${left} instead of ${right}`)
}

// Fails unless the promise is rejected; gives what with.
export async function rejects(promise) {
  try {
    await promise
  } catch (error) {
    return error
  }
  throw new Error('was not rejected')
}

// A critical section that records every entry while another worker is inside.
export class Witness {
  constructor(limit = 1) {
    Object.assign(this, { limit, inside: 0, most: 0, entries: 0 })
  }
  async visit(work) {
    this.inside += 1
    this.entries += 1
    this.most = Math.max(this.most, this.inside)
    await work()
    this.inside -= 1
  }
  verdict(entries) {
    assert(this.most <= this.limit, `${this.most} were in a critical section for ${this.limit}`)
    equal(this.entries, entries)
  }
}

export const workers = (count, work) => Promise.all(Array.from({ length: count }, (_, number) => work(number)))

// Runs the cases in order, `before` ahead of each and `after` at the end; ends the process.
export async function run(cases, { before = async () => {}, after = async () => {} } = {}) {
  let failed = false
  process.on('unhandledRejection', (error) => {
    console.log(`not ok unhandled rejection: ${error?.stack ?? error}`)
    process.exit(1)
  })
  for (const [name, work] of Object.entries(cases)) {
    let timer
    const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error('took more than 60 s')), 60_000)))
    try {
      await before()
      await Promise.race([work(), late])
      console.log(`ok ${name}`)
    } catch (error) {
      if (error instanceof Skip) {
        console.log(`skip ${name}: ${error.message}`)
      } else {
        failed = true
        console.error(error)
        console.log(`not ok ${name}: ${error.message}`)
      }
    } finally {
      clearTimeout(timer)
    }
  }
  await Promise.race([after(), sleep(2000)])
  process.exit(failed ? 1 : 0)
}
