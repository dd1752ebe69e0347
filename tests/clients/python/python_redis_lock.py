"""python-redis-lock: SET NX with a signal list that waiters BLPOP on, renewal by a thread."""

import logging
import threading
import time

import redis
import redis_lock

from suite import HOST, PORT, PROTOCOL, Witness, case, elapsed, main, raises, threads

logging.disable(logging.WARNING)
client = redis.Redis(host=HOST, port=PORT, protocol=PROTOCOL, max_connections=100)


@case
def mutual_exclusion():
    witness = Witness()

    def work(_):
        for _ in range(15):
            with redis_lock.Lock(client, "exclusion", expire=10), witness:
                time.sleep(0.0005)

    threads(8, work)
    witness.verdict(120)


@case
def a_waiter_is_woken_by_the_release():
    holder = redis_lock.Lock(client, "woken", expire=30)
    assert holder.acquire()
    threading.Timer(0.2, holder.release).start()
    seconds, taken = elapsed(lambda: redis_lock.Lock(client, "woken", expire=30).acquire(timeout=20))
    assert taken and seconds < 2, seconds


@case
def a_dead_holder_is_outlived():
    assert redis_lock.Lock(client, "dead", expire=1).acquire()
    seconds, taken = elapsed(lambda: redis_lock.Lock(client, "dead", expire=2).acquire(timeout=2))
    assert taken and 0.5 < seconds < 5, seconds


@case
def another_owner_is_refused():
    holder, other = redis_lock.Lock(client, "owner", expire=10, id="me"), redis_lock.Lock(client, "owner", expire=10, id="you")
    assert holder.acquire() and not other.acquire(blocking=False)
    raises(redis_lock.NotAcquired, other.release)
    assert holder.get_owner_id() in (b"me", "me") and holder.locked()
    raises(redis_lock.AlreadyAcquired, holder.acquire)
    holder.release()


@case
def renewal():
    with redis_lock.Lock(client, "renewal", expire=1, auto_renewal=True):
        time.sleep(1.8)
        assert not redis_lock.Lock(client, "renewal", expire=1).acquire(blocking=False)
    lock = redis_lock.Lock(client, "extended", expire=5)
    assert lock.acquire()
    lock.extend(expire=100)
    assert client.ttl("lock:extended") > 90


@case
def time_outs():
    assert redis_lock.Lock(client, "timeout", expire=30).acquire()
    seconds, taken = elapsed(lambda: redis_lock.Lock(client, "timeout", expire=30).acquire(timeout=1))
    assert not taken and 0.8 < seconds < 3


@case
def reset_all():
    for name in ("a", "b", "c"):
        assert redis_lock.Lock(client, name, expire=60).acquire()
    redis_lock.reset_all(client)
    assert redis_lock.Lock(client, "a", expire=1).acquire(blocking=False)


main(before_each=client.flushall)
