"""Grants that nobody releases, and whose objects are collected."""

import asyncio
import gc
import time
import warnings

import pytest

import portcullis_lock
from portcullis_lock.compat import Lock
from waiting import until


def test_a_forgotten_grant_warns_and_ends_with_its_lease(locks, caplog):
    grant = locks.lock("a", lease=0.6).acquire()
    with pytest.warns(ResourceWarning, match="the lock 'a' was not released, .*Acquire it by `with`, or keep the grant and call its release"):
        del grant
        gc.collect()
    until(lambda: locks.info("a") is None, 5)
    until(lambda: not locks._keeper.live(), 5)
    assert "the lock 'a' was not released" in caplog.text


async def test_and_on_asyncio(alocks):
    grant = await alocks.semaphore("s", 2, lease=0.6).acquire()
    with pytest.warns(ResourceWarning, match="the semaphore 's' was not released"):
        del grant
        gc.collect()
    end = time.monotonic() + 5
    while await alocks.info("s") is not None or alocks._keeper.live():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_a_forgotten_session_ends_with_its_lease(locks):
    with pytest.warns(ResourceWarning):
        locks.lock("a", lease=0.4, session=True).acquire()
        gc.collect()
    until(lambda: locks.info("a") is None and not locks._keeper.live() and not locks._keeper._sessions, 5)


def test_a_forgotten_grant_whose_callback_waits_for_its_loss_is_forgotten_all_the_same(locks):
    grant, told = locks.lock("a", lease=0.3).acquire(), []
    grant.on_lost(told.append)
    with pytest.warns(ResourceWarning):
        del grant
        gc.collect()
    until(lambda: locks.info("a") is None, 5)


@pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_nothing_is_said_of_other_grants(portcullis, portcullisdb, locks):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with locks.lock("a"):
            pass
        with locks.lock("a") as grant:
            pass
        grant = locks.lock("a").acquire()
        grant.release()
        # Its lease is meant to run out.
        locks.lock("once an hour", lease=0.1, renew=False).acquire()
        lost = locks.lock("b", lease=60).acquire()
        portcullisdb.delete("b")
        assert lost.lost.wait(5)
        del grant, lost
        gc.collect()
    until(lambda: not locks._keeper.live() and locks.info("once an hour") is None, 15)


def test_a_grant_that_was_forgotten_is_released_by_close(portcullis):
    with portcullis.locks() as locks:
        with pytest.warns(ResourceWarning):
            locks.lock("a").acquire()
            gc.collect()
    assert portcullis.leaked_locks() == []


def test_a_drop_in_without_a_timeout_is_renewed_while_the_process_lives(portcullis, portcullisdb, monkeypatch):
    monkeypatch.setattr("portcullis_lock.compat._drop_in._LEASE", 0.6)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        assert Lock(portcullisdb, "a").acquire()
        gc.collect()
    time.sleep(1.2)
    with portcullis_lock.connect(portcullis.url) as locks:
        (holder,) = locks.info("a").holders
        other = Lock(portcullisdb, "a")
        other.local.token = holder.owner.encode()
        other.release()


def test_a_grant_is_kept_while_somebody_waits_for_its_loss(portcullis, locks, spawn):
    waiting = spawn(lambda: locks.lock("a", lease=0.4).acquire().lost.wait(20))
    time.sleep(1)
    assert waiting.is_alive() and locks.info("a") is not None
    with portcullis.client() as admin:
        admin.delete("a")
    assert waiting.result(5)


async def test_and_on_asyncio_while_a_task_waits_for_its_loss(portcullis, alocks):
    lost = (await alocks.lock("a", lease=0.4).acquire()).lost
    await asyncio.sleep(1)
    assert not lost.is_set() and await alocks.info("a") is not None
    await alocks._core.call([("DEL", "a")], until=0)
    await asyncio.wait_for(lost.wait(), 5)


def test_events_of_a_loss_are_not_kept(locks):
    with locks.lock("a") as grant:
        assert grant.lost is grant.lost
        assert not any(grant.lost.is_set() for _ in range(10)) and grant._held._events == []
