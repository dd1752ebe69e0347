"""The drop-in for redis.lock.Lock. Each case runs against redis-py's own lock as well, so that both do the same."""

import inspect
import threading
import time

import pytest
import redis.exceptions
import redis.lock
from redis.exceptions import LockError, LockNotOwnedError

from portcullis_lock import compat


@pytest.fixture(params=["native", "redis-py"])
def kind(request):
    return compat.Lock if request.param == "native" else redis.lock.Lock


@pytest.fixture
def make(portcullisdb, kind):
    def make(name="a", **options):
        return portcullisdb.lock(name, lock_class=kind, **options)

    yield make
    if kind is compat.Lock:
        compat._locks.of(portcullisdb).close(release=False)


def test_it_is_locked_and_owned_while_held(make):
    lock, other = make(timeout=10), make()
    assert not lock.locked() and not lock.owned()
    assert lock.acquire(blocking=False) is True
    assert lock.locked() and lock.owned() and other.locked() and not other.owned()
    assert other.acquire(blocking=False) is False
    lock.release()
    assert not lock.locked() and not lock.owned() and lock.local.token is None
    assert other.acquire() is True
    other.release()


def test_as_a_context_manager(make):
    with make(timeout=10) as lock:
        assert lock.owned()
        with pytest.raises(LockError, match="Unable to acquire lock"):
            with make(blocking_timeout=0.05):
                pass
    assert not lock.locked()


def test_a_blocking_timeout_is_kept(make):
    lock, other = make(), make(blocking_timeout=0.2, sleep=0.01)
    lock.acquire()
    begun = time.monotonic()
    assert other.acquire() is False and 0.15 < time.monotonic() - begun < 2
    begun = time.monotonic()
    assert other.acquire(blocking_timeout=0.05) is False and time.monotonic() - begun < 1
    assert other.acquire(blocking=False) is False
    lock.release()


def test_a_waiter_gets_it(make, spawn):
    lock, other = make(), make(sleep=0.01)
    lock.acquire()
    waiting = spawn(lambda: (other.acquire(), other.owned(), other.release()))
    time.sleep(0.05)
    lock.release()
    assert waiting.result()[:2] == (True, True)


def test_an_unlocked_lock_is_not_released(make):
    with pytest.raises(LockError, match="Cannot release an? (lock that's not owned or is already )?unlocked"):
        make().release()
    with pytest.raises(LockError, match="Cannot extend an unlocked lock"):
        make(timeout=1).extend(1)
    with pytest.raises(LockError, match="Cannot reacquire an unlocked lock"):
        make(timeout=1).reacquire()


def test_without_a_timeout_nothing_is_extended(make):
    with make() as lock:
        with pytest.raises(LockError, match="no timeout"):
            lock.extend(1)
        with pytest.raises(LockError, match="no timeout"):
            lock.reacquire()


def test_a_lock_that_is_gone_is_no_longer_owned(portcullisdb, make):
    lock = make(timeout=10)
    for doing, call in (("extend", lambda: lock.extend(5)), ("reacquire", lock.reacquire), ("release", lock.release)):
        lock.acquire()
        portcullisdb.delete("a")
        with pytest.raises(LockNotOwnedError, match=f"Cannot {doing} a lock that's no longer owned"):
            call()
        lock.local.token = None


def test_a_lease_that_ends_frees_it(portcullis, make):
    portcullis.clock.freeze()
    lock, other = make(timeout=2), make(timeout=2)
    lock.acquire()
    portcullis.clock.advance(2)
    assert not lock.owned() and other.acquire(blocking=False)
    with pytest.raises(LockNotOwnedError):
        lock.release()
    assert other.owned()
    other.release()


def test_extend_and_reacquire(portcullis, portcullisdb, make):
    portcullis.clock.freeze()
    lock = make(timeout=10)
    lock.acquire()
    assert lock.extend(10) is True and portcullisdb.pttl("a") == 20_000
    assert lock.extend(7.5, replace_ttl=True) is True and portcullisdb.pttl("a") == 7500
    assert lock.reacquire() is True and portcullisdb.pttl("a") == 10_000
    lock.release()


def test_a_token_of_ones_own_excludes_itself(make):
    lock, other = make(sleep=0.01), make(sleep=0.01)
    assert lock.acquire(token="mine") is True and lock.local.token == b"mine"
    assert other.acquire(blocking=False, token="mine") is False
    assert other.acquire(blocking_timeout=0.05, token=b"mine") is False
    assert lock.owned()
    lock.release()
    assert other.acquire(token="mine") is True
    other.release()


def test_a_token_of_ones_own_excludes_itself_in_a_race(portcullisdb, spawn):
    for _ in range(20):
        start, contenders = threading.Barrier(6), [compat.Lock(portcullisdb, "a", thread_local=False) for _ in range(6)]
        racing = [spawn(lambda lock=lock: start.wait() and False or lock.acquire(blocking=False, token="mine")) for lock in contenders]
        won = [thread.result() for thread in racing]
        assert won.count(True) <= 1
        portcullisdb.delete("a")
    compat._locks.of(portcullisdb).close(release=False)


def test_another_process_releases_by_the_token(make):
    lock, other = make(), make()
    lock.acquire()
    other.local.token = lock.local.token
    assert other.owned()
    other.release()
    assert not lock.locked()


def test_a_thread_does_not_release_what_another_one_holds(make, spawn):
    lock, done = make(), threading.Event()
    assert lock.acquire()

    def release():
        try:
            lock.release()
        except (LockError, AttributeError):  # redis-py's has no token in another thread.
            return "refused"
        finally:
            done.set()

    assert spawn(release).result() == "refused" and lock.owned()
    lock.release()
    shared = make(thread_local=False)
    shared.acquire()
    spawn(shared.release).result()
    assert not shared.locked()


def test_release_errors_can_be_logged(portcullisdb, kind, caplog):
    if kind is redis.lock.Lock and "raise_on_release_error" not in inspect.signature(kind.__init__).parameters:
        kind = compat.Lock  # An older redis-py has no such option.
    with kind(portcullisdb, "a", timeout=10, raise_on_release_error=False):
        portcullisdb.delete("a")
    assert "no longer owned when exiting" in caplog.text


@pytest.mark.parametrize("first, second", [(compat.Lock, redis.lock.Lock), (redis.lock.Lock, compat.Lock)])
def test_both_kinds_keep_each_other_out(portcullisdb, first, second):
    one, two = first(portcullisdb, "a", timeout=10), second(portcullisdb, "a", timeout=10)
    with one:
        assert two.acquire(blocking=False) is False
    with two:
        assert one.acquire(blocking=False) is False


def test_what_redis_py_says_of_a_name_that_a_native_lock_holds(portcullisdb, locks):
    """The guide's page says it."""
    theirs = redis.lock.Lock(portcullisdb, "a", timeout=10)
    with locks.lock("a"):
        assert theirs.acquire(blocking=False) is False
        theirs.local.token = b"lost before"
        for call in (theirs.locked, theirs.owned, theirs.release):
            with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
                call()


def test_a_lock_without_a_timeout_is_renewed(portcullis, portcullisdb, monkeypatch):
    monkeypatch.setattr("portcullis_lock.compat._drop_in._LEASE", 0.2)
    with compat.Lock(portcullisdb, "a") as lock:
        time.sleep(0.5)
        assert lock.owned() and lock.grant.token > 0
