"""The clock, alone and with freezegun and time-machine."""

import asyncio
import datetime
import functools
import time

import freezegun
import pytest
import time_machine as time_machine_module

import portcullis_lock
from portcullis_lock import NotHeldError
from portcullis_lock._clock import now
from portcullis_lock.compat import Lock

NOON = datetime.datetime(2031, 5, 4, 12, tzinfo=datetime.timezone.utc)


def unix(portcullis):
    return portcullis.clock.info()["unix-ms"] / 1000


def test_the_monotonic_clock_is_never_replaced():
    with freezegun.freeze_time(NOON):
        begun, shown = now(), time.monotonic()
        time.sleep(0.005)
        assert now() > begun and time.monotonic() == shown
    with time_machine_module.travel(NOON, tick=False):
        begun = now()
        time.sleep(0.005)
        assert now() > begun


@pytest.mark.parametrize("travel", [freezegun.freeze_time, lambda when: time_machine_module.travel(when, tick=False)])
def test_waiting_for_waiters_works_under_a_frozen_clock(portcullis, locks, spawn, travel):
    with travel(NOON):
        grant = locks.lock("a").acquire()
        waiting = spawn(locks.lock("a", wait=30).acquire)
        portcullis.clock.until_blocked(1)
        grant.release()
        waiting.result().release()
        with pytest.raises(AssertionError, match="0 clients are blocked, and not 1"):
            portcullis.clock.until_blocked(1, patience=0.05)


@pytest.mark.parametrize("travel", [freezegun.freeze_time, lambda when: time_machine_module.travel(when, tick=False)])
async def test_and_on_asyncio(portcullis, alocks, travel):
    with travel(NOON):
        grant = await alocks.lock("a").acquire()
        waiting = asyncio.create_task(alocks.lock("a", wait=30).acquire())
        await portcullis.clock.aio.until_blocked(1)
        await grant.release()
        await (await waiting).release()


async def test_a_blocking_wait_in_a_coroutine_is_refused(portcullis):
    with pytest.raises(RuntimeError, match="await clock.aio.until_blocked"):
        portcullis.clock.until_blocked(1)


async def test_the_clock_for_coroutines(portcullis):
    clock = portcullis.clock.aio
    await clock.freeze()
    before = (await clock.info())["unix-ms"]
    await clock.advance(datetime.timedelta(seconds=2))
    assert (await clock.info())["unix-ms"] == before + 2000
    skewed = (await clock.info())["skew-ms"]
    await clock.skew(5)
    assert (await clock.info())["skew-ms"] == skewed + 5000
    await clock.set(NOON)
    assert (await clock.info())["unix-ms"] == NOON.timestamp() * 1000
    await clock.resume()
    faults = portcullis.faults.aio
    await faults.add("lost", "DROP", on="set", times=1)
    assert await faults.fired("lost") == 0 and await faults.remove("lost") and not await faults.remove("lost")
    await faults.reset()


def test_the_server_follows_time_machine(portcullis, portcullisdb):
    with time_machine_module.travel(NOON, tick=False) as traveller:
        portcullis.clock.follow(traveller)
        assert unix(portcullis) == NOON.timestamp() and portcullis.clock.info()["frozen"]
        portcullisdb.set("lease", "x", px=10_000)
        traveller.shift(9.999)
        assert portcullisdb.exists("lease")
        traveller.shift(datetime.timedelta(milliseconds=1))
        assert not portcullisdb.exists("lease") and unix(portcullis) == time.time()
        traveller.move_to(NOON + datetime.timedelta(hours=1))
        assert unix(portcullis) == NOON.timestamp() + 3600


def test_the_server_follows_the_fixture_of_time_machine(portcullis, time_machine):
    time_machine.move_to(NOON, tick=False)
    portcullis.clock.follow(time_machine)
    time_machine.shift(60)
    assert unix(portcullis) == NOON.timestamp() + 60


def test_the_server_follows_freezegun(portcullis, locks):
    with freezegun.freeze_time(NOON) as frozen:
        portcullis.clock.follow(frozen)
        grant = locks.lock("a", lease=30, renew=False).acquire()
        frozen.tick(29.5)
        assert grant.check()
        frozen.tick(datetime.timedelta(seconds=0.5))
        assert not grant.check() and grant.lost.wait(5)
        frozen.move_to(NOON + datetime.timedelta(days=1))
        assert unix(portcullis) == NOON.timestamp() + 86_400


def test_a_traveller_whose_time_goes_on_leaves_the_server_running(portcullis):
    with time_machine_module.travel(NOON) as traveller:
        portcullis.clock.follow(traveller)
        assert not portcullis.clock.info()["frozen"] and 0 <= unix(portcullis) - NOON.timestamp() < 5


def test_a_reset_ends_the_following(portcullis):
    portcullis.clock.skew(1e6)
    portcullis.reset()
    assert abs(unix(portcullis) - time.time()) < 1 and not portcullis.clock.info()["frozen"]


def test_a_grant_whose_lease_ends_with_an_advance_knows_it(portcullis, locks):
    portcullis.clock.freeze()
    for number in range(50):
        kept = locks.lock("kept", lease=60).acquire()
        grant = locks.lock(f"n:{number}", lease=30, renew=False).acquire()
        portcullis.clock.advance(30)
        assert grant.lost.is_set() and "lease ended" in grant.lost_because and not grant.is_held
        assert kept.is_held and not kept.lost.is_set()
        with pytest.raises(NotHeldError, match="lease ended"):
            grant.release()
        kept.release()


async def test_and_on_asyncio_as_well(portcullis, alocks):
    await portcullis.clock.aio.freeze()
    for number in range(50):
        grant = await alocks.lock(f"n:{number}", lease=30, renew=False).acquire()
        await portcullis.clock.aio.advance(30)
        assert grant.lost.is_set() and "lease ended" in grant.lost_because
        with pytest.raises(NotHeldError, match="lease ended"):
            await grant.release()


async def test_the_blocking_clock_in_a_coroutine_and_in_a_thread_tell_of_losses_on_asyncio(portcullis, alocks):
    portcullis.clock.freeze()
    for advance in (portcullis.clock.advance, functools.partial(asyncio.to_thread, portcullis.clock.advance)):
        grant = await alocks.lock("a", lease=30, renew=False).acquire()
        moved = advance(30)
        if moved is not None:
            await moved
        assert grant.lost.is_set()
        with pytest.raises(NotHeldError):
            await grant.release()


def test_each_way_to_the_server_tells_of_losses(portcullis):
    portcullis.clock.freeze()
    client = portcullis.client(db=2)
    with portcullis_lock.over(client) as over, portcullis_lock.connect(f"redis://localhost:{portcullis.port}/1") as by_name:
        grants = [over.lock("a", lease=30, renew=False).acquire(), by_name.semaphore("s", 2, lease=30, renew=False).acquire()]
        grants.append(by_name.all(["b", "c"], lease=30, renew=False).acquire())
        lock = Lock(client, "d", timeout=30)
        assert lock.acquire()
        portcullis.clock.advance(30)
        assert all(grant.lost.is_set() for grant in [*grants, lock.grant])


def test_a_grant_that_an_owner_has_upgraded_is_not_lost_by_an_advance(portcullis, locks):
    portcullis.clock.freeze()
    with locks.lock("a", shared=True, owner="me") as shared, locks.lock("a", owner="me", wait=1) as exclusive:
        portcullis.clock.advance(1)
        assert shared.is_held and exclusive.is_held


def test_a_restart_tells_of_losses(portcullis, locks):
    grant = locks.lock("a").acquire()
    portcullis.restart()
    assert grant.lost.is_set() and "restarted without its data" in grant.lost_because
    with pytest.raises(NotHeldError, match="restarted without its data"):
        grant.release()


def test_a_fault_that_hits_renewals_does_not_hide_a_loss(portcullis, locks):
    portcullis.clock.freeze()
    grant = locks.lock("a", lease=30, renew=False).acquire()
    portcullis.faults.add("mute", "DROP", on="lock.renew")
    portcullis.clock.advance(30)
    assert grant.lost.is_set()
