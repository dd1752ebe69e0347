"""Many workers on one lock, and the resource that it protects."""

import asyncio
import time

import redis

# Nothing that these tests wait for comes by the end of a lease.
LEASE = 600.0
# Limit of a test that has failed, in seconds. One that passes waits for events alone, however slow the machine is.
PATIENCE = 180.0


class Resource:
    """Notices two workers at once, and tokens that do not grow."""

    def __init__(self):
        self.inside, self.most, self.tokens = 0, 0, []

    def enter(self, token):
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.tokens.append(token)

    def leave(self):
        self.inside -= 1

    def verify(self, visits):
        assert self.most == 1, f"{self.most} workers at once"
        assert self.inside == 0 and len(self.tokens) == visits
        assert self.tokens == sorted(set(self.tokens)), "a token does not grow"


def once(acquire):
    try:
        return acquire()
    except redis.exceptions.TimeoutError:
        return None


def thread_worker(locks, resource, name, rounds, wait):
    """Visits the resource so many times. Sends its token to the server's guard each time."""
    guard, lock = locks.guard(f"guard:{name}"), locks.lock(name, lease=LEASE, wait=wait)
    for _ in range(rounds):
        while (grant := once(lock.acquire)) is None:
            pass
        with grant:
            resource.enter(grant.token)
            guard.write(grant)
            resource.leave()


async def task_worker(locks, resource, name, rounds, wait):
    guard, lock = locks.guard(f"guard:{name}"), locks.lock(name, lease=LEASE, wait=wait)
    for _ in range(rounds):
        grant = None
        while grant is None:
            try:
                grant = await lock.acquire()
            except redis.exceptions.TimeoutError:
                pass  # No connection within the wait: 64 are made at once, on few cores.
        async with grant:
            resource.enter(grant.token)
            await guard.write(grant)
            resource.leave()


def run_threads(all_locks, name, rounds, wait, spawn, count=64, meanwhile=None):
    """64 threads, which share these locks. Returns the seconds."""
    resource, begun = Resource(), time.monotonic()
    threads = [spawn(lambda locks=all_locks[n % len(all_locks)]: thread_worker(locks, resource, name, rounds, wait)) for n in range(count)]
    if meanwhile is not None:
        meanwhile(resource)
    for thread in threads:
        thread.result(PATIENCE)
    resource.verify(count * rounds)
    return time.monotonic() - begun


async def run_tasks(all_locks, name, rounds, wait, count=64, meanwhile=None):
    """64 tasks, which share these locks."""
    resource = Resource()
    tasks = [asyncio.create_task(task_worker(all_locks[n % len(all_locks)], resource, name, rounds, wait)) for n in range(count)]
    if meanwhile is not None:
        await asyncio.to_thread(meanwhile, resource)
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
    resource.verify(count * rounds)


def visited(resource, count):
    """Waits until the resource has been visited so often."""
    end = time.monotonic() + PATIENCE
    while len(resource.tokens) < count:
        assert time.monotonic() < end, "the workers do not work"
        time.sleep(0.002)


