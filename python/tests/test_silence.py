"""Holders whose connections stand, and whom nobody answers: they count as no holders before the server's leases end, and find another node before that."""

import asyncio
import time

import pytest
from proxy import Proxy
from waiting import until

import portcullis_lock
from portcullis_lock import NotHeldError
from portcullis_lock._clock import certain
from portcullis_lock.compat import Lock

# Its margin is longer than a busy machine takes to wake a thread.
LEASE = 6.0

KINDS = {
    "lock": lambda locks: locks.lock("lock", lease=LEASE),
    "waited for": lambda locks: locks.lock("waited for", lease=LEASE, wait=5),
    "not renewed": lambda locks: locks.lock("not renewed", lease=LEASE, renew=False),
    "shared": lambda locks: locks.lock("shared", lease=LEASE, shared=True),
    "owner": lambda locks: locks.lock("owner", lease=LEASE, owner="me"),
    "several": lambda locks: locks.all(["several", "b"], lease=LEASE),
    "semaphore": lambda locks: locks.semaphore("semaphore", 2, lease=LEASE),
    "session": lambda locks: locks.lock("session", lease=LEASE, session=True, grace=60),
    "session, not renewed": lambda locks: locks.lock("session, not renewed", lease=LEASE, session=True, grace=60, renew=False),
    "max_hold": lambda locks: locks.lock("max_hold", lease=60, max_hold=LEASE),
}


@pytest.fixture
def proxy(portcullis):
    with Proxy(portcullis.port) as proxy:
        yield proxy


def url(*proxies):
    return "redis://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)


def test_the_margin_is_a_twentieth_but_not_much_more_than_a_second():
    assert [certain(seconds) for seconds in (0.1, 10, 20, 3600)] == [0.095, 9.5, 19.0, 3595.4]
    assert certain(30) == pytest.approx(28.97)


def test_nobody_holds_when_the_server_has_not_answered_for_the_lease(portcullis, proxy):
    with portcullis.locks() as others, portcullis_lock.connect(url(proxy)) as locks:
        told, grants = {}, {}
        for kind, describe in KINDS.items():
            grants[kind] = describe(locks).acquire()
            grants[kind].on_lost(lambda _, kind=kind: told.setdefault(kind, time.monotonic()))
            assert grants[kind].is_held and 0 < grants[kind].remaining() < certain(LEASE)
        proxy.is_silent = True
        silent, left = time.monotonic(), {kind: grant.remaining() for kind, grant in grants.items()}
        assert all(grant.lost.wait(2 * LEASE) for grant in grants.values())
        late = {kind: told[kind] - silent - left[kind] for kind in KINDS}
        assert max(left.values()) < certain(LEASE) and -0.01 < min(late.values()) and max(late.values()) < LEASE - certain(LEASE), late
        assert not any(grant.is_held or grant.remaining() for grant in grants.values())
        proxy.is_silent = False
        for kind, grant in grants.items():
            assert grant.lost_because.startswith("its lease ended") and not grant.check(), f"{kind}: an answer that comes now is too late"
            with pytest.raises(NotHeldError, match="its lease ended"):
                grant.release()
        until(lambda: all(others.info(name) is None for name in [*KINDS, "b"]), 10)


async def test_the_same_on_asyncio(portcullis, proxy):
    async with portcullis.async_locks() as others, portcullis_lock.aio.connect(url(proxy)) as locks:
        told, grants = {}, {}
        for kind, describe in KINDS.items():
            grants[kind] = await describe(locks).acquire()
            grants[kind].on_lost(lambda _, kind=kind: told.setdefault(kind, time.monotonic()))
        proxy.is_silent = True
        silent, left = time.monotonic(), {kind: grant.remaining() for kind, grant in grants.items()}
        for grant in grants.values():
            await asyncio.wait_for(grant.lost.wait(), 2 * LEASE)
        late = {kind: told[kind] - silent - left[kind] for kind in KINDS}
        assert max(left.values()) < certain(LEASE) and -0.01 < min(late.values()) and max(late.values()) < LEASE - certain(LEASE), late
        assert not any(grant.is_held or grant.remaining() for grant in grants.values())
        proxy.is_silent = False
        for grant in grants.values():
            assert not await grant.check()
            with pytest.raises(NotHeldError, match="its lease ended"):
                await grant.release()
        assert await others.info("lock") is None


def test_a_drop_in_counts_as_any_other(portcullis, proxy):
    over = portcullis.client(socket_timeout=1)
    over.connection_pool.connection_kwargs["port"] = proxy.port
    lock = Lock(over, "a", timeout=60)
    assert lock.acquire()
    begun = time.monotonic()
    assert lock.extend(LEASE, replace_ttl=True)
    proxy.is_silent = True
    assert lock.grant.lost.wait(2 * LEASE) and time.monotonic() - begun < LEASE
    assert not lock.grant.is_held
    proxy.is_silent = False
    with portcullis.locks() as others:
        until(lambda: others.info("a") is None, 10)


def test_what_waits_for_the_server_holds_up_no_news(portcullis, proxy):
    """Sessions to take over, requests to withdraw, and losses to ask for: each waits for a server that does not answer."""
    with portcullis.locks() as others, portcullis_lock.connect(url(proxy), timeout=3) as locks:
        sessions = [locks.lock(f"s:{number}", lease=60, session=True, grace=30).acquire() for number in range(8)]
        broken = [locks.lock(f"b:{number}", lease=60).acquire() for number in range(3)]
        begun = time.monotonic()
        lease = 2.0
        grants = [locks.lock("a", lease=lease).acquire(), locks.lock("b", lease=lease, renew=False).acquire()]
        told = []
        for grant in grants:
            grant.on_lost(lambda lost: told.append(time.monotonic() - begun))
        with portcullis.client() as admin:
            proxy.is_silent = True
            admin.delete("b:0", "b:1", "b:2")
        for session in sessions:
            locks._keeper._take_over_soon([session])
        locks._keeper.wake()
        assert all(grant.lost.wait(10) for grant in grants)
        assert max(told) < lease + 1, told
        proxy.is_silent = False
        for grant in [*sessions, *broken]:
            try:
                grant.release()
            except NotHeldError:
                pass
        until(lambda: all(others.info(name) is None for name in ("a", "b", "s:0", "b:0")), 10)


def test_a_node_that_does_not_answer_is_left_for_the_next_leader(portcullis, lease=3.0):
    """Two ways to one server: the one that led stands still, and the other one leads."""
    with Proxy(portcullis.port) as first, Proxy(portcullis.port) as second, portcullis.locks() as others:
        with portcullis_lock.connect(url(first, second)) as locks:
            named = ["a", "s", "sem", "n"]
            grants = [locks.lock("a", lease=lease).acquire(), locks.lock("s", lease=lease, session=True, grace=60).acquire()]
            grants += [locks.semaphore("sem", 2, lease=lease).acquire(), locks.lock("n", lease=60, session=True, grace=60, renew=False).acquire()]
            before = [others.info(name).fields["holders"][0]["client"] for name in named]
            first.is_silent = True
            until(lambda: all(others.info(name).fields["holders"][0]["client"] != client for name, client in zip(named, before) if name in "sn"), lease)
            time.sleep(2 * lease)
            assert all(grant.is_held and grant.check() for grant in grants)
            assert all(grant._held.link.address.endswith(str(second.port)) for grant in (grants[1], grants[3]))
            # The server takes the end of the old connections for no end of the sessions.
            first.is_silent = False
            first.close()
            time.sleep(0.2)
            assert all(grant.is_held and grant.check() for grant in grants)
            for grant in grants:
                grant.release()


async def test_and_on_asyncio_as_well(portcullis, lease=3.0):
    with Proxy(portcullis.port) as first, Proxy(portcullis.port) as second:
        async with portcullis_lock.aio.connect(url(first, second)) as locks:
            grants = [await locks.lock("a", lease=lease).acquire(), await locks.lock("s", lease=lease, session=True, grace=60).acquire()]
            first.is_silent = True
            await asyncio.sleep(2 * lease)
            assert all([grant.is_held and await grant.check() for grant in grants])
            assert grants[1]._held.link.address.endswith(str(second.port))
            first.is_silent = False
            first.close()
            await asyncio.sleep(0.2)
            assert all([grant.is_held and await grant.check() for grant in grants])
            for grant in grants:
                await grant.release()


@pytest.mark.parametrize("grace", [0.0, 0.8])
def test_a_session_that_cannot_come_back_is_lost_with_its_grace(portcullis, proxy, grace):
    with portcullis.locks() as others, portcullis_lock.connect(url(proxy)) as locks:
        grant = locks.lock("a", lease=60, session=True, grace=grace).acquire()
        waited = others.lock("a", lease=60, wait=20)
        begun = time.monotonic()
        proxy.close()
        assert grant.lost.wait(5) and time.monotonic() - begun < grace + 0.5 and not grant.is_held
        assert "longer than its grace" in grant.lost_because
        with waited:
            assert time.monotonic() - begun >= grace


async def test_a_session_that_cannot_come_back_on_asyncio(portcullis, proxy):
    async with portcullis_lock.aio.connect(url(proxy)) as locks:
        grant = await locks.lock("a", lease=60, session=True, grace=0.8).acquire()
        begun = time.monotonic()
        proxy.close()
        await asyncio.wait_for(grant.lost.wait(), 5)
        assert time.monotonic() - begun < 1.3 and "longer than its grace" in grant.lost_because
    with portcullis.locks() as others:
        until(lambda: others.info("a") is None, 5)


def test_a_lost_grant_is_released_when_its_holder_has_stopped(portcullis, proxy):
    """As after a change of leader, which has not seen the session's connection: the next one need not wait for the lease."""
    with portcullis.locks() as others, portcullis_lock.connect(url(proxy)) as locks:
        grant = locks.lock("a", lease=60, session=True, grace=60).acquire()
        locks._keeper.lose(grant._held, "its session ended")
        assert others.info("a") is not None
        with pytest.raises(NotHeldError):
            grant.release()
        assert others.info("a") is None


def test_a_grant_whose_reply_was_lost_counts_from_the_first_request(portcullis, locks, monkeypatch):
    portcullis.faults.add("lost", "CLOSE-AFTER", on="lock.acquire", times=1)
    # The renewal that asks what is left fails, too.
    portcullis.faults.add("closed", "CLOSE", on="lock.renew", times=50)
    monkeypatch.setattr(locks._core, "retry_for", 0.3)
    monkeypatch.setattr("portcullis_lock._core._PAUSE", 0.5)
    begun = time.monotonic()
    grant = locks.lock("a", lease=20, wait=10).acquire()
    took = time.monotonic() - begun
    assert grant._held.lease_end < begun + 20.2 < begun + 20 + took
    portcullis.faults.reset()
    grant.release()
