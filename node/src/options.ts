/** Checks what callers give. From plain JavaScript it may be anything, and an option that is mistyped would do nothing. */

function shown(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value)
  if (typeof value === 'function') return 'a function'
  return typeof value === 'object' && value !== null ? (Array.isArray(value) ? 'a list' : 'an object') : String(value)
}

/**
 * The options, if they have only known names.
 *
 * @param what What they are the options of.
 * @throws TypeError, which lists the known ones.
 */
export function known<T extends object>(what: string, options: T, names: ReadonlyArray<keyof T>): T {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new TypeError(`the options of ${what} are an object with ${names.join(', ')}, and not ${shown(options)}`)
  }
  for (const name in options) {
    if (!names.includes(name) && options[name] !== undefined) {
      throw new TypeError(`${what} has no option ${JSON.stringify(name)}; there are ${names.join(', ')}`)
    }
  }
  return options
}

/**
 * A whole number of milliseconds, of permits or the like.
 *
 * @throws RangeError if it is none from `least` on.
 */
export function whole(what: string, value: unknown, least: number): number {
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < least) {
    throw new RangeError(`${what} must be a whole number from ${least} on, not ${shown(value)}`)
  }
  return value
}

/**
 * How long to wait, in milliseconds: a part of one counts as a whole one.
 *
 * @throws RangeError if it is no number from 0 on.
 */
export function milliseconds(what: string, value: unknown): number {
  if (value === Infinity) return value
  if (typeof value !== 'number' || !(value >= 0) || !Number.isSafeInteger(Math.ceil(value))) {
    throw new RangeError(`${what} must be a number of milliseconds from 0 on, or Infinity, and not ${shown(value)}`)
  }
  return Math.ceil(value)
}

/** @throws TypeError if the value is no text. */
export function text(what: string, value: unknown): string {
  if (typeof value !== 'string') throw new TypeError(`${what} must be a text, not ${shown(value)}`)
  return value
}

/** The name of a connection. @throws TypeError if the server does not take it. */
export function connectionName(value: unknown): string {
  if (!/^[!-~]*$/.test(text('name', value))) throw new TypeError(`name must be of printable ASCII without blanks, not ${shown(value)}`)
  return value as string
}

/** The name of a lock. @throws TypeError if it is no text. */
export function lockName(value: unknown): string {
  return text('the name of a lock', value)
}

/** @throws TypeError if the value is neither true nor false. */
export function flag(what: string, value: unknown): boolean {
  if (typeof value !== 'boolean') throw new TypeError(`${what} must be true or false, not ${shown(value)}`)
  return value
}

/** @throws TypeError if the value is no AbortSignal. */
export function signalOf(value: unknown): AbortSignal {
  const signal = value as Partial<AbortSignal> | null
  if (typeof signal?.addEventListener !== 'function' || typeof signal.aborted !== 'boolean') {
    throw new TypeError(`signal must be an AbortSignal, as of an AbortController, not ${shown(value)}`)
  }
  return value as AbortSignal
}
