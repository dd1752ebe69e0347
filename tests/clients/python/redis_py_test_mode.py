"""An application's tests with nothing but redis-py: the server's clock is theirs, so that nothing in them waits."""

import threading
import time

import redis
from redis.exceptions import LockNotOwnedError

from suite import HOST, PORT, PROTOCOL, case, elapsed, main, raises

client = redis.Redis(host=HOST, port=PORT, protocol=PROTOCOL, decode_responses=True)


def before_each():
    client.execute_command("CLOCK FREEZE")
    client.flushall()


def advance(seconds):
    client.execute_command("CLOCK ADVANCE", round(seconds * 1000))


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it does not come to that"
        time.sleep(0.001)


@case
def a_wait_of_thirty_seconds():
    got = []
    waiter = redis.Redis(host=HOST, port=PORT, protocol=PROTOCOL)
    thread = threading.Thread(target=lambda: got.append(waiter.blpop("jobs", timeout=30)))
    thread.start()
    until(lambda: client.info("clients")["blocked_clients"] == 1)
    advance(29.999)
    assert thread.is_alive() and not got
    start = time.monotonic()
    advance(0.001)
    thread.join(10)
    took = time.monotonic() - start
    assert got == [None], got
    assert took < 0.05, f"{took * 1000:.1f} ms"


@case
def a_lock_of_ten_seconds():
    holder, other = client.lock("lock", timeout=10), client.lock("lock", timeout=10)
    assert holder.acquire(blocking=False)
    advance(9.999)
    assert not other.acquire(blocking=False)
    advance(0.001)
    assert other.acquire(blocking=False)
    raises(LockNotOwnedError, holder.release)
    other.release()


@case
def time_stands_still_and_is_set():
    now = client.time()
    assert client.time() == now
    client.execute_command("CLOCK SET", 4_000_000_000_000)
    assert client.time() == (4_000_000_000, 0)
    client.set("k", 1, px=1000)
    client.execute_command("CLOCK SKEW", 3_600_000)
    assert client.time() == (4_000_003_600, 0) and client.pttl("k") == 1000
    client.execute_command("CLOCK SET", now[0] * 1000)
    assert client.time() == (now[0], 0) and client.pttl("k") == 1000


@case
def a_year_takes_no_time():
    for hour in range(1000):
        client.set(f"session:{hour}", "x", ex=3600 * hour + 1)
    seconds, _ = elapsed(lambda: advance(365 * 86_400))
    assert client.dbsize() == 0 and seconds < 1, seconds


main(before_each)
