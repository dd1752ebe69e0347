"""The clock, alone and with freezegun and time-machine."""

import asyncio
import datetime
import time

import freezegun
import pytest
import time_machine as time_machine_module

from portcullis_lock._clock import now

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
