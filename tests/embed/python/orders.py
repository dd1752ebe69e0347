"""A small application: orders are worked on by one worker at a time."""

from redis.exceptions import ConnectionError, TimeoutError

RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class Orders:
    def __init__(self, client, worker, lease_ms=10_000):
        self.client, self.worker, self.lease_ms = client, worker, lease_ms
        self._release = client.register_script(RELEASE)

    def acquire(self, order):
        """Whether the order is ours. A reply that got lost is no answer: what is stored there is."""
        try:
            if self.client.set(f"lock:order:{order}", self.worker, nx=True, px=self.lease_ms):
                return True
        except (ConnectionError, TimeoutError):
            pass
        return self.client.get(f"lock:order:{order}") == self.worker

    def release(self, order):
        return bool(self._release(keys=[f"lock:order:{order}"], args=[self.worker]))

    def submit(self, order):
        self.client.rpush("orders", order)

    def next(self, timeout):
        """The next order, or None when there was none for so many seconds."""
        popped = self.client.blpop("orders", timeout=timeout)
        return popped and popped[1]
