"""pottery: RedLock over several servers, its id generator, and containers on WATCH and MULTI."""

import time
import warnings

import redis
from pottery import NextID, QuorumNotAchieved, RedisCounter, RedisDeque, RedisDict, RedisSet, Redlock, ReleaseUnlockedLock, synchronize

from suite import HOST, PORTS, PROTOCOL, Witness, case, main, raises, threads

warnings.simplefilter("ignore")
masters = {redis.Redis(host=HOST, port=port, protocol=PROTOCOL, max_connections=100) for port in PORTS}
first = redis.Redis(host=HOST, port=PORTS[0], protocol=PROTOCOL)


def flush():
    for master in masters:
        master.flushall()


@case
def mutual_exclusion():
    witness = Witness()

    def work(_):
        for _ in range(4):
            with Redlock(key="exclusion", masters=masters, auto_release_time=10), witness:
                time.sleep(0.001)

    threads(4, work)
    witness.verdict(16)


@case
def a_dead_holder_is_outlived():
    assert Redlock(key="dead", masters=masters, auto_release_time=0.5).acquire()
    assert not Redlock(key="dead", masters=masters, auto_release_time=0.5).acquire(blocking=False)
    time.sleep(0.6)
    assert Redlock(key="dead", masters=masters, auto_release_time=0.5).acquire(timeout=5)


@case
def renewal_and_release():
    lock = Redlock(key="renewal", masters=masters, auto_release_time=20)
    assert lock.acquire() and 0 < lock.locked() <= 20
    # So long that a machine with other work does not make up for it.
    time.sleep(1.5)
    before = lock.locked()
    lock.extend()
    # It returns when most servers have extended it, and what is left of it may be asked of the last one before that has.
    end = time.monotonic() + 10
    while lock.locked() <= before:
        assert time.monotonic() < end, "not extended"
        time.sleep(0.01)
    assert lock.locked() <= 20
    lock.release()
    assert lock.locked() == 0
    raises(ReleaseUnlockedLock, lock.release)


@case
def synchronized():
    witness = Witness()

    @synchronize(key="synchronized", masters=masters, auto_release_time=10, blocking=True, timeout=-1)
    def section():
        with witness:
            time.sleep(0.001)

    threads(4, lambda _: section())
    witness.verdict(4)


@case
def ids_never_repeat():
    ids = []
    maker = NextID(key="ids", masters=masters)

    def work(_):
        for _ in range(5):
            try:
                ids.append(next(maker))
            except QuorumNotAchieved:
                pass  # several raced for the same id: the library asks its caller to try again

    threads(3, work)
    assert ids and len(ids) == len(set(ids))


@case
def containers():
    numbers = RedisDict({"one": 1}, redis=first, key="dict")
    numbers["two"] = 2
    assert dict(numbers) == {"one": 1, "two": 2}
    queue = RedisDeque("abc", redis=first, key="deque", maxlen=3)
    queue.append("d")
    assert list(queue) == ["b", "c", "d"]
    assert RedisSet({"a", "b"}, redis=first, key="set") == {"a", "b"}
    counter = RedisCounter("hello", redis=first, key="counter")
    assert counter["l"] == 2


main(before_each=flush)
