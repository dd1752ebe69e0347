/** Reads replies of RESP2, in which a map is a list of names and values. */
import type { Holder } from './errors.js'

/** An owner that waits for a lock. */
export interface Waiter {
  owner: string
  mode: string
  /** Milliseconds. */
  waited: number
  /** Milliseconds that are left of the wait; null without limit. */
  left: number | null
  client: number
  addr: string
  clientName: string
}

/** How the last grant of a lock ended. */
export interface LastEnd {
  /** `released`, `expired`, `deleted`, `session-ended` or `broken`. */
  event: string
  owner: string
  token: number
  /** Milliseconds. */
  ago: number
  by: unknown
  reason: string | null
}

/** What LOCK.INFO shows. Times are milliseconds. Fields depend on the kind. */
export interface LockInfo {
  /** `lock`, `semaphore`, `latch`, `guard`, or `string`, `hash` … for a plain key. */
  kind: string
  holders: Holder[]
  waiters: Waiter[]
  lastEnd?: LastEnd | null
  [field: string]: unknown
}

const camel = (name: string) => name.replace(/-([a-z])/g, (_, letter: string) => letter.toUpperCase())

/** A map; its names in camel case. */
export function mapOf(list: unknown): Record<string, unknown> {
  if (!Array.isArray(list)) return {}
  const map: Record<string, unknown> = {}
  for (let at = 0; at + 1 < list.length; at += 2) map[camel(String(list[at]))] = list[at + 1]
  return map
}

const listOf = (value: unknown) => (Array.isArray(value) ? value : [])

/** The reply of LOCK.INFO; null if there is no such lock. */
export function infoOf(reply: unknown): LockInfo | null {
  if (!Array.isArray(reply)) return null
  const map = mapOf(reply)
  const holders = listOf(map['holders']).map((holder) => {
    const fields = mapOf(holder)
    return { ...fields, session: fields['session'] === 1 } as unknown as Holder
  })
  const waiters = listOf(map['waiters']).map((waiter) => mapOf(waiter) as unknown as Waiter)
  const lastEnd = Array.isArray(map['lastEnd']) ? (mapOf(map['lastEnd']) as unknown as LastEnd) : null
  return { ...map, holders, waiters, lastEnd } as LockInfo
}

/** What a key is that keeps a lock from being granted, for the message of an error; undefined for a lock, or no key. */
export function plainKeyText(name: string, info: LockInfo | null | undefined, isOnly: boolean): string | undefined {
  if (!info || info.kind === 'lock' || info.kind === 'semaphore') return undefined
  return `a plain key ${isOnly ? 'of this name' : `'${name}'`} is in the way (${info.kind}), until it is deleted or expires`
}

/** Who holds a lock, for the message of an error. */
export function holderText(holder: Holder): string {
  const client = holder.clientName ? `'${holder.clientName}' at ${holder.addr}` : holder.addr
  const gone = holder.gone === null ? '' : `, whose connection ended ${holder.gone} ms ago`
  return `'${holder.owner}' (${client}${gone}) for ${holder.held} ms, with ${holder.lease} ms left of its lease`
}

