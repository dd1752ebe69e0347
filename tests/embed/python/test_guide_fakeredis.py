"""The test of guide/python.md with fakeredis, whose time is the test's own. This is all that it needs."""

import threading
import time

import fakeredis
import pytest
from redis.lock import Lock

LEASE = 0.5  # As short as the machine allows: each test waits for it.


@pytest.fixture
def server():
    server = fakeredis.FakeServer()
    yield server
    held = fakeredis.FakeRedis(server=server).keys("order:*")
    assert not held, f"locks are still held: {held}"


def connect(server):
    return fakeredis.FakeRedis(server=server)


class Worker(threading.Thread):
    def __init__(self, server):
        super().__init__(daemon=True)
        self.lock = Lock(connect(server), "order:42", timeout=30, sleep=0.01, thread_local=False)
        self.error = None
        self.start()

    def run(self):
        try:
            assert self.lock.acquire(blocking_timeout=10)
        except BaseException as error:
            self.error = error


def test_the_next_worker_goes_on_when_one_has_died(server):
    dead = Lock(connect(server), "order:42", timeout=LEASE)
    assert dead.acquire()
    worker = Worker(server)
    time.sleep(LEASE / 2)  # It is hoped that the worker waits by now.
    assert worker.is_alive()
    time.sleep(LEASE)  # It is hoped that the lease has ended, and the worker has polled.
    worker.join(5)
    assert worker.error is None and worker.lock.owned()
    assert not dead.owned()
    worker.lock.release()
