"""The application's own tests, with redis-py and the fixtures of portcullis-lock."""

import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import redis
from orders import Orders
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError
from redis.retry import Retry


def test_an_order_is_worked_on_by_one(connect):
    ann, bob = Orders(connect(), "ann"), Orders(connect(), "bob")
    assert ann.acquire(7) and not bob.acquire(7)
    assert not bob.release(7) and ann.release(7)
    assert bob.acquire(7) and bob.release(7)


def test_a_worker_that_has_died_holds_nobody_up_for_longer_than_its_lease(portcullis, connect):
    portcullis.clock.freeze()
    ann, bob = Orders(connect(), "ann"), Orders(connect(), "bob")
    assert ann.acquire(7)
    portcullis.clock.advance(9.999)
    assert not bob.acquire(7)
    portcullis.clock.advance(timedelta(milliseconds=1))
    assert bob.acquire(7)
    assert not ann.release(7) and bob.release(7)


def test_a_wait_of_half_a_minute_is_over_at_once(portcullis, connect):
    portcullis.clock.freeze()
    got = []
    thread = threading.Thread(target=lambda: got.append(Orders(connect(), "ann").next(timeout=30)))
    thread.start()
    portcullis.clock.until_blocked(1)
    start = time.monotonic()
    portcullis.clock.advance(30)
    thread.join(10)
    assert got == [None] and time.monotonic() - start < 0.05


def test_whoever_has_lost_the_reply_looks_whose_lock_it_is(portcullis, connect):
    portcullis.faults.add("lost", "DROP-REPLY", on="set", client="ann", times=1)
    ann = Orders(connect(client_name="ann", socket_timeout=0.1, retry=Retry(NoBackoff(), 0)), "ann")
    assert ann.acquire(7)
    assert portcullis.faults.fired("lost") == 1
    assert ann.release(7)


def test_a_failover_gives_the_same_order_to_two(portcullis, connect):
    portcullis.journal(10)
    ann, bob = Orders(connect(), "ann"), Orders(connect(), "bob")
    ann.submit(7)
    assert ann.acquire(7)
    assert portcullis.restart(lose=1) == 1
    # What no lock without a fencing token can prevent.
    assert bob.acquire(7)
    assert bob.client.lrange("orders", 0, -1) == ["7"]
    assert not ann.release(7) and bob.release(7)
    portcullis.restart()
    assert bob.client.dbsize() == 0


def test_a_slow_reply_is_waited_for(portcullis, connect):
    portcullis.faults.add("slow", "DELAY-REPLY 60", on="set", times=1)
    portcullis.faults.add("trickle", "TRICKLE 1 5", on="get", times=1)
    client = connect()
    start = time.monotonic()
    assert client.set("k", "value") and client.get("k") == "value"
    assert time.monotonic() - start >= 0.06 + 0.05


def test_errors_come_as_they_are(portcullis, connect):
    portcullis.faults.add("full", ("ERROR", "OOM no room"), on="rpush", times=1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        Orders(connect(), "ann").submit(7)


@pytest.mark.leaks_locks
def test_a_leaked_lock_is_named(portcullis, connect):
    portcullis.clock.freeze()
    client = connect(client_name="leaky")
    assert Orders(client, "ann").acquire(7)
    token = client.execute_command("LOCK.ACQUIRE", "door", "bob", 5000)
    with pytest.raises(AssertionError) as raised:
        portcullis.assert_no_leaked_locks()
    text = str(raised.value)
    assert "lock:order:7 (string) held by 'ann'" in text and f"door (lock) held by 'bob' for" in text
    assert f"token {token}" in text and "'leaky'" in text
    assert portcullis.leaked_locks("nothing:*") == [line for line in portcullis.leaked_locks() if line.startswith("door")]


def test_nothing_is_left_of_the_tests_before(portcullis, connect):
    client = connect()
    assert client.dbsize() == 0 and portcullis.leaked_locks() == []
    info = portcullis.clock.info()
    assert not info["frozen"] and abs(info["unix-ms"] / 1000 - time.time()) < 1
    waiter = threading.Thread(target=lambda: connect().blpop("nothing", 0))
    waiter.start()
    portcullis.clock.until_blocked(1)
    start = time.monotonic()
    portcullis.reset()
    assert time.monotonic() - start < 0.1
    waiter.join(10)
    assert not waiter.is_alive()


def test_whatever_went_wrong_in_the_tests_before_is_over(portcullis, connect):
    portcullis.faults.add("all", ("ERROR", "LOADING not yet"))
    portcullis.clock.until_blocked(0)
    portcullis.restart()
    portcullis.clock.freeze()
    portcullis.reset()
    client = connect(retry=Retry(NoBackoff(), 0))
    portcullis.clock.freeze()
    portcullis.faults.add("slow", "DELAY 5000", on="set")

    def set_and_lose():
        with pytest.raises(ConnectionError):
            client.set("of the test before", 1)

    waiter = threading.Thread(target=set_and_lose)
    waiter.start()
    portcullis.clock.until_blocked(1)
    connect().client_pause(60_000)
    portcullis.reset()
    waiter.join(10)
    portcullis.clock.advance(60)
    assert connect().dbsize() == 0 and not waiter.is_alive()


def test_the_server_does_not_outlive_a_run_that_is_killed():
    program = "from portcullis_lock.testing import Portcullis; s = Portcullis(); print(s.port, flush=True); import time; time.sleep(60)"
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=__file__.rsplit("/", 1)[0])
    port = int(run.stdout.readline())
    client = redis.Redis(port=port, retry=Retry(NoBackoff(), 0))
    assert client.ping()
    run.kill()
    run.wait()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            client.ping()
        except ConnectionError:
            return
        time.sleep(0.005)
    raise AssertionError("it is still there")
