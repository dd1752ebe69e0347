/** The server's clients, as CLIENT LIST shows them. */
import type { Control } from './control.js'

export interface Client {
  id: string
  db: number
  /** Whether it waits: in BLPOP, on a lock, by a pause or by a delay. */
  isBlocked: boolean
}

/** All clients but the hooks' own connection. */
export async function clients(control: Control): Promise<Client[]> {
  const own = String(await control.call('CLIENT', 'ID'))
  const lines = String(await control.call('CLIENT', 'LIST')).split('\n').filter(Boolean)
  const field = (line: string, name: string) => new RegExp(`(?:^| )${name}=(\\S*)`).exec(line)?.[1] ?? ''
  return lines
    .map((line) => ({ id: field(line, 'id'), db: Number(field(line, 'db')), isBlocked: field(line, 'flags').includes('b') }))
    .filter((client) => client.id !== own)
}

/** Ends the waits of clients. A client whose request is delayed by a fault loses its connection and the request. */
export async function unblock(control: Control, which: readonly Client[]): Promise<void> {
  for (const { id, isBlocked } of which) {
    if (isBlocked && !(await control.call('CLIENT', 'UNBLOCK', id))) await control.call('CLIENT', 'KILL', 'ID', id)
  }
}
