/**
 * Counts the grants of this process that hold a lock for the same named owner.
 *
 * The server counts how often an owner has acquired a lock. When a reply is lost, its count may exceed the grants by one: that
 * surplus is remembered, and the last grant releases all holds. An owner has one lease, which each acquisition and renewal restarts:
 * the longest lease is remembered, so that no grant shortens that of another.
 */
interface Entry {
  grants: number
  surplus: boolean
  lease: number
}

export class Holds {
  #entries = new Map<string, Entry>()

  #entry(name: string, owner: string): Entry {
    const key = JSON.stringify([name, owner])
    let entry = this.#entries.get(key)
    if (!entry) this.#entries.set(key, (entry = { grants: 0, surplus: false, lease: 0 }))
    return entry
  }

  /** The longest lease of the grants with this name and owner, in milliseconds; 0 without grants. */
  lease(name: string, owner: string): number {
    const entry = this.#entries.get(JSON.stringify([name, owner]))
    return entry && entry.grants > 0 ? entry.lease : 0
  }

  add(name: string, owner: string, lease: number): void {
    const entry = this.#entry(name, owner)
    entry.grants++
    entry.lease = Math.max(entry.lease, lease)
  }

  /** An acquisition without a grant, or a failed release, may have left a hold on the server. */
  markSurplus(name: string, owner: string): void {
    this.#entry(name, owner).surplus = true
  }

  /** Removes a grant. Returns whether its release has to release all holds that the server counts. */
  remove(name: string, owner: string): boolean {
    const entry = this.#entry(name, owner)
    entry.grants--
    if (entry.grants > 0) return false
    this.#entries.delete(JSON.stringify([name, owner]))
    return entry.surplus
  }
}
