"""Locks in blocking code."""

import math
import re
import time
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
import redis

import portcullis_lock
from portcullis_lock import DeadlockError, LimitError, LockError, NotAcquiredError, NotHeldError, ReplyError, StaleTokenError


def test_a_grant_has_a_token_and_ends_with_the_block(locks):
    with locks.lock("a", lease=10) as first:
        assert first.is_held and first.check() and 9 < first.remaining() <= 10
        assert first.name == "a" and first.tokens == {"a": first.token}
    assert not first.is_held and not first.check() and first.remaining() == 0
    with locks.lock("a") as second:
        assert second.token > first.token


def test_a_description_does_no_io():
    portcullis_lock.connect("redis://127.0.0.1:1").lock("a", wait=5)


def test_each_acquisition_has_an_owner_of_its_own(locks):
    lock = locks.lock("a")
    with lock as first:
        assert lock.acquire() is None and lock.try_acquire() is None
    with lock as second:
        assert second.owner != first.owner


def test_a_given_owner_is_reentrant_and_released_as_often(locks):
    with locks.lock("a", owner="me") as outer:
        with locks.lock("a", owner="me", lease=1) as inner:
            assert inner.token == outer.token
            assert locks.info("a").holders[0].holds == 2
            assert locks.info("a").holders[0].lease > 20, "an inner lease must not shorten the outer one"
        assert locks.lock("a").try_acquire() is None
    assert locks.info("a") is None


@pytest.mark.parametrize("wait", [None, 0, 0.0])
def test_without_a_wait_the_answer_comes_at_once(locks, wait):
    with locks.lock("a"):
        begun = time.monotonic()
        assert locks.lock("a", wait=wait).acquire() is None
        assert time.monotonic() - begun < 1


@pytest.mark.parametrize("wait", [-1, math.nan, -math.inf, "5", timedelta(seconds=5)])
def test_a_wait_is_a_number_of_seconds(locks, wait):
    with pytest.raises(ValueError, match="math.inf for ever"):
        locks.lock("a", wait=wait)


@pytest.mark.parametrize("lease", [0, -1, math.nan, math.inf, "30", timedelta(seconds=30)])
def test_a_lease_is_a_positive_number_of_seconds(locks, lease):
    with pytest.raises(ValueError, match="lease"):
        locks.lock("a", lease=lease)


def test_a_lease_of_too_many_seconds_is_said_to_be_too_long(locks):
    for lease in (1e12, 10**400, Decimal("1e12")):
        with pytest.raises(ValueError, match="lease is .*; it can be at most a hundred years, in seconds|must be a positive number"):
            locks.lock("a", lease=lease)
    with pytest.raises(ValueError, match="at most a hundred years"):
        locks.lock("a", lease=1e12)


@pytest.mark.parametrize("three", [Decimal(3), Fraction(3), 3])
def test_any_number_is_a_time(locks, three):
    with locks.lock("a", lease=three, wait=three, max_hold=three, delay=three, session=True, grace=three) as grant:
        assert 2 < grant.remaining() <= 3 and grant.renew() > 2
    assert locks.latch("l").wait(three / 1000) is False


def test_a_wait_of_an_eternity_is_one_without_limit(portcullis, locks, spawn):
    with locks.lock("a"):
        waiting = [spawn(locks.lock("a", wait=wait, shared=True).acquire) for wait in (1e30, 10**400)] + [spawn(lambda: locks.latch("l").wait(1e30))]
        portcullis.clock.until_blocked(3)
        assert [waiter.left for waiter in locks.info("a").waiters] == [None, None]
    for thread in waiting[:2]:
        thread.result().release()
    locks.latch("l").set(1), locks.latch("l").down()
    assert waiting[2].result() is True


def test_a_lock_may_have_an_empty_name(locks):
    with locks.lock(""):
        assert locks.lock("").acquire() is None


def test_a_tiny_wait_is_no_wait_for_ever(locks):
    with locks.lock("a"):
        assert locks.lock("a", wait=1e-9).acquire() is None
    request = locks.lock("a", wait=1)._request
    assert request.acquire("me", "id", 0.0001)[-4:-2] == ("WAIT", 1)
    assert request.acquire("me", "id", math.inf)[-4:-2] == ("WAIT", 0)
    assert "WAIT" not in request.acquire("me", "id", 0)


def test_waiters_are_served_in_their_order(portcullis, locks, spawn):
    order = []
    grant = locks.lock("a").acquire()

    def wait(number):
        with locks.lock("a", wait=math.inf):
            order.append(number)

    waiting = []
    for number in range(3):
        waiting.append(spawn(lambda number=number: wait(number)))
        portcullis.clock.until_blocked(number + 1)
    grant.release()
    for thread in waiting:
        thread.result()
    assert order == [0, 1, 2]


def test_a_wait_that_is_longer_than_the_lease_gives_a_whole_lease(portcullis, locks, spawn):
    portcullis.clock.freeze()
    first = locks.lock("a", lease=100).acquire()
    second = spawn(locks.lock("a", lease=0.3, wait=5).acquire)
    portcullis.clock.until_blocked(1)
    time.sleep(0.35)
    first.release()
    grant = second.result()
    assert grant.is_held and grant.remaining() > 0.2
    grant.release()


def test_a_refusal_names_the_holder(locks):
    with locks.lock("a") as grant:
        with pytest.raises(NotAcquiredError, match=f"the lock 'a' was not granted at once, as no wait=… is given: held by '{grant.owner}' at 127.0.0.1"):
            with locks.lock("a"):
                pass
        with pytest.raises(NotAcquiredError, match="within 0.1 s"):
            with locks.lock("a", wait=0.1):
                pass


def test_a_refusal_says_when_the_holder_is_this_process(portcullis, locks):
    with locks.lock("a"), pytest.raises(NotAcquiredError, match="in this process: .* the same owner"):
        with locks.lock("a"):
            pass
    with portcullis.locks() as others, others.lock("a"), pytest.raises(NotAcquiredError) as caught:
        with locks.lock("a"):
            pass
    assert "this process" not in str(caught.value)


def test_shared_holders_hold_it_together(locks):
    with locks.lock("a", shared=True) as one, locks.lock("a", shared=True) as two:
        assert one.is_held and two.is_held
        assert locks.lock("a").try_acquire() is None
    with locks.lock("a"):
        assert locks.lock("a", shared=True).try_acquire() is None


def test_an_owner_upgrades_a_shared_lock(locks):
    with locks.lock("a", shared=True, owner="me") as shared:
        with locks.lock("a", owner="me", wait=1) as exclusive:
            assert exclusive.token > shared.token
            assert shared.renew() > 20
    assert locks.info("a") is None


def test_a_release_is_made_once(locks):
    grant = locks.lock("a").acquire()
    grant.release()
    with locks.lock("a") as next_grant:
        grant.release()
        assert next_grant.check()


def test_a_release_by_many_threads_is_made_once(portcullisdb, locks, spawn):
    grant = locks.lock("a", owner="me").acquire()
    portcullisdb.config_resetstat()
    with locks.lock("a", owner="me"):
        for thread in [spawn(grant.release) for _ in range(8)]:
            thread.result()
        assert locks.info("a").holders[0].holds == 1
        assert portcullisdb.info("commandstats")["cmdstat_lock.release"]["calls"] == 1


def test_an_error_in_the_block_is_not_hidden_by_the_release(portcullis, locks, caplog):
    with pytest.raises(KeyError):
        with locks.lock("a"):
            portcullis.client().delete("a")
            raise KeyError("mine")
    assert "deleted" in caplog.text


def test_a_lost_lock_is_an_error_at_the_end_of_the_block(portcullis, locks):
    with pytest.raises(NotHeldError, match="ended before its release") as caught:
        with locks.lock("a"):
            portcullis.client().delete("a")
    assert "deleted" in caught.value.cause
    assert isinstance(caught.value, redis.exceptions.LockNotOwnedError) and isinstance(caught.value, LockError)


def test_one_description_serves_many_threads(locks, spawn):
    lock, inside, most = locks.lock("a", wait=10), [0], [0]

    def work():
        for _ in range(20):
            with lock as grant:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                assert grant.is_held
                inside[0] -= 1

    for thread in [spawn(work) for _ in range(8)]:
        thread.result()
    assert most == [1]


def test_a_block_can_be_left_by_another_thread(locks, spawn):
    lock = locks.lock("a")
    lock.__enter__()
    spawn(lambda: lock.__exit__(None, None, None)).result()
    assert locks.info("a") is None


def test_several_locks_are_acquired_together_or_not_at_all(locks):
    with locks.lock("b"):
        assert locks.all(["a", "b"]).acquire() is None
        assert locks.info("a") is None
        with pytest.raises(NotAcquiredError, match="'b': held by"):
            with locks.all(["a", "b"]):
                pass
    with locks.all(["a", "b"], wait=1) as grant:
        assert set(grant.tokens) == {"a", "b"} and grant.check()
        with pytest.raises(ValueError, match=r"tokens\['a'\]"):
            grant.token
    with pytest.raises(TypeError):
        locks.all("ab")
    with pytest.raises(ValueError, match="twice"):
        locks.all(["a", "a"])


def test_a_semaphore_lets_its_limit_in(locks):
    two = locks.semaphore("s", 3, permits=2)
    with two as grant, locks.semaphore("s", 3):
        assert grant.check() and grant.renew() > 20
        assert locks.semaphore("s", 3).acquire() is None
        with pytest.raises(LimitError, match="same limit"):
            locks.semaphore("s", 5).acquire()
    with pytest.raises(ValueError):
        locks.semaphore("s", 1, permits=2)


def test_a_latch_opens_at_zero(portcullis, locks, spawn):
    latch = locks.latch("parts")
    assert latch.set(2) and not latch.set(2)
    assert not latch.wait(0) and not latch.wait(0.02)
    waiting = spawn(latch.wait)
    portcullis.clock.until_blocked(1)
    assert latch.down() == 1 and latch.down() == 0
    assert waiting.result() is True


def test_a_guard_refuses_smaller_tokens(locks):
    with locks.lock("a") as first:
        pass
    with locks.lock("a") as second:
        locks.guard("ledger").write(second)
        with pytest.raises(StaleTokenError, match="later holder") as caught:
            locks.guard("ledger").write(first.token)
    assert (caught.value.token, caught.value.seen, caught.value.resource) == (first.token, second.token, "ledger")


def test_a_guard_has_another_name_than_its_lock(locks):
    with locks.lock("a") as grant, pytest.raises(ReplyError, match=r"a guard, for instance, cannot have its lock's name.*locks.info\(name\)"):
        locks.guard("a").write(grant)


def test_a_throttle_says_when_to_come_back(locks):
    answers = [locks.throttle("t", 1, 1, 60) for _ in range(3)]
    assert [answer.allowed for answer in answers] == [True, True, False]
    assert answers[0].retry_after is None and 55 < answers[2].retry_after <= 60


def test_a_deadlock_is_refused_with_its_cycle(portcullis, locks, spawn):
    with locks.lock("checking", owner="alice"), locks.lock("savings", owner="bob") as savings:
        bob = spawn(locks.lock("checking", owner="bob", wait=10).acquire)
        portcullis.clock.until_blocked(1)
        with pytest.raises(DeadlockError, match="take the locks at once") as caught:
            locks.lock("savings", owner="alice", wait=10).acquire()
        assert [(wait.owner, wait.lock, wait.behind) for wait in caught.value.cycle] == [
            ("alice", "savings", "bob"),
            ("bob", "checking", "alice"),
        ]
        savings.check()
    bob.result().release()


def test_an_administrator_breaks_a_grant(locks):
    told = []
    with pytest.raises(NotHeldError) as caught:
        with locks.lock("a") as grant:
            grant.on_lost(told.append)
            assert locks.break_("a", grant.token, "stuck") and not locks.break_("a", grant.token, "again")
            assert grant.lost.wait(5)
    assert re.fullmatch(r"broken by client \d+ \d+ ms ago: stuck", caught.value.cause)
    assert told == [grant]


def test_max_hold_and_delay_are_sent(portcullis, locks):
    portcullis.clock.freeze()
    grant = locks.lock("a", lease=10, max_hold=15, delay=5).acquire()
    portcullis.clock.advance(9)
    assert 5.5 < grant.renew() <= 6
    portcullis.clock.advance(6)
    assert grant.lost.is_set() and "max_hold" in grant.lost_because
    assert locks.lock("a").try_acquire() is None
    portcullis.clock.advance(5)
    locks.lock("a").acquire().release()


def test_closing_releases_what_is_held(portcullis):
    with portcullis.locks() as locks:
        locks.lock("a").acquire()
    with pytest.raises(LockError, match="closed"):
        locks.lock("a").acquire()


def test_a_ping_says_what_the_server_is(portcullis, locks):
    assert locks.ping() == f"Portcullis at 127.0.0.1:{portcullis.port}"


def test_a_plain_key_of_the_name_is_waited_for(portcullis, locks):
    portcullis.client().set("a", "old", px=60_000)
    with pytest.raises(NotAcquiredError, match="plain key"):
        with locks.lock("a"):
            pass
    portcullis.client().delete("a")


def test_locks_come_over_from_a_client(portcullis):
    client = portcullis.client(db=3, client_name="worker-1", socket_timeout=0.2)
    with portcullis_lock.over(client) as locks, locks.lock("a") as grant:
        assert client.exists("a") and locks.info("a").holders[0].client_name == "worker-1"
        assert str(locks.info("a")).startswith(f"'a': held by '{grant.owner}' at 127.0.0.1") and "worker-1" in locks.info("a").text
        assert grant.check()
    with pytest.raises(TypeError, match="not a redis-py client"):
        portcullis_lock.over("redis://a")


def test_threads_that_wait_do_not_hold_up_the_release(portcullis, locks, spawn):
    grant = locks.lock("a").acquire()
    waiting = [spawn(lambda: locks.lock("a", wait=30).acquire().release()) for _ in range(20)]
    portcullis.clock.until_blocked(20)
    begun = time.monotonic()
    grant.release()
    for thread in waiting:
        thread.result()
    assert time.monotonic() - begun < 2
