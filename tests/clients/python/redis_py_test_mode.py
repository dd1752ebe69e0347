"""An application's tests with nothing but redis-py: the server's clock is theirs, and so is what goes wrong."""

import threading
import time

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, LockNotOwnedError, OutOfMemoryError, TimeoutError
from redis.retry import Retry

from suite import HOST, PORT, PROTOCOL, case, elapsed, main, raises

client = redis.Redis(host=HOST, port=PORT, protocol=PROTOCOL, decode_responses=True)


def before_each():
    client.execute_command("FAULT RESET")
    client.execute_command("CLOCK FREEZE")
    client.flushall()


def advance(seconds):
    client.execute_command("CLOCK ADVANCE", round(seconds * 1000))


def fault(name, what, *options):
    client.execute_command("FAULT ADD", name, *what.split(), *options)


def worker(retries=0):
    """A client of its own that meets the faults for `worker`, and waits no longer than 0.2 s for a reply."""
    retry = Retry(NoBackoff(), retries)
    return redis.Redis(
        host=HOST, port=PORT, protocol=PROTOCOL, decode_responses=True, socket_timeout=0.2, retry=retry, client_name="worker"
    )


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


def take(connection, token):
    return connection.set("lock", token, nx=True, px=10_000)


@case
def a_lost_reply_and_a_naive_client():
    fault("lost", "DROP-REPLY", "ON", "set", "CLIENT", "worker", "TIMES", 1)
    naive = worker()
    raises(TimeoutError, lambda: take(naive, "naive"))
    # It believes that it has no lock, and it is told so again; but nobody else can get it before the lease is over.
    assert take(naive, "naive again") is None and take(client, "other") is None
    advance(9.999)
    assert take(client, "other") is None
    advance(0.001)
    assert take(client, "other")


@case
def a_lost_reply_and_a_client_that_checks_its_token():
    fault("lost", "DROP-REPLY", "ON", "set", "CLIENT", "worker", "TIMES", 1)
    careful = worker()

    def acquire(token):
        try:
            if take(careful, token):
                return True
        except (ConnectionError, TimeoutError):
            pass
        return careful.get("lock") == token

    assert acquire("careful") and take(client, "other") is None
    release = careful.register_script("if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0")
    assert release(keys=["lock"], args=["careful"]) == 1
    assert take(client, "other")
    assert not acquire("careful")


@case
def a_retry_of_the_library_takes_the_lock_from_itself():
    fault("lost", "RESET-AFTER", "ON", "set", "CLIENT", "worker", "TIMES", 1)
    retrying = worker(retries=1)
    assert take(retrying, "mine") is None and retrying.get("lock") == "mine"


@case
def errors_and_connections_that_are_lost():
    connection = worker()
    client.execute_command("FAULT ADD", "full", "ERROR", "OOM command not allowed", "ON", "set", "TIMES", 1)
    raises(OutOfMemoryError, lambda: connection.set("k", 1))
    for what, done in (("CLOSE", 0), ("RESET", 0), ("CLOSE-AFTER", 1), ("RESET-AFTER", 1)):
        client.flushall()
        fault("cut", what, "ON", "set", "CLIENT", "worker", "TIMES", 1)
        raises(ConnectionError, lambda: connection.set("k", 1))
        assert client.exists("k") == done and connection.ping(), what


@case
def a_delay_is_on_the_clock_of_the_server():
    fault("slow", "DELAY 60000", "ON", "incrby", "CLIENT", "worker")
    raises(TimeoutError, lambda: worker().incr("n"))
    client.execute_command("FAULT DEL", "slow")
    fault("slow", "DELAY 50", "ON", "incrby", "CLIENT", "worker")
    client.execute_command("CLOCK RESUME")
    seconds, value = elapsed(lambda: worker().incr("n"))
    assert value == 1 and 0.05 <= seconds < 0.2, (value, seconds)


@case
def chance_repeats_itself():
    def run():
        client.execute_command("FAULT SEED", 42)
        client.execute_command("FAULT ADD", "flaky", "ERROR", "ERR flaky", "ON", "echo", "PROBABILITY", 0.3)
        pipeline = client.pipeline(transaction=False)
        for _ in range(100):
            pipeline.echo("x")
        return [isinstance(reply, Exception) for reply in pipeline.execute(raise_on_error=False)]

    first = run()
    assert 15 < sum(first) < 45 and run() == first


main(before_each)
