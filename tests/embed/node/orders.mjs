// A small application: orders are worked on by one worker at a time.
const RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"

export class Orders {
  constructor(client, worker, leaseMs = 10_000) {
    Object.assign(this, { client, worker, leaseMs })
  }
  // Whether the order is ours. A reply that got lost is no answer: what is stored there is.
  async acquire(order) {
    try {
      if ((await this.client.set(`lock:order:${order}`, this.worker, 'PX', this.leaseMs, 'NX')) === 'OK') return true
    } catch (error) {
      if (error.name === 'ReplyError') throw error
      // Replies are told apart by their order alone: a connection that has lost one is of no more use.
      const again = this.client.duplicate()
      this.client.disconnect()
      this.client = again
    }
    return (await this.client.get(`lock:order:${order}`)) === this.worker
  }
  async release(order) {
    return (await this.client.eval(RELEASE, 1, `lock:order:${order}`, this.worker)) === 1
  }
  submit(order) {
    return this.client.rpush('orders', order)
  }
  // The next order, or null when there was none for so many seconds.
  async next(seconds) {
    return (await this.client.blpop('orders', seconds))?.[1] ?? null
  }
}
