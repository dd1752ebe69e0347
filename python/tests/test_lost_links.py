"""Connections that end while grants live on them: the grants move to another one, and losses are heard there."""

import asyncio
import threading
import time

import pytest

from portcullis_lock import NotHeldError, _link
from portcullis_lock.testing import Portcullis
from waiting import until, until_async


def holder(locks, name="a"):
    return locks.info(name).fields["holders"][0]


def test_a_cancelled_wait_closes_no_connection_that_grants_live_on(portcullis, locks, spawn):
    with portcullis.locks() as others, others.lock("taken"):
        grant = locks.lock("a", lease=60, wait=5).acquire()
        client = holder(locks)["client"]
        with portcullis.client() as admin:
            for attempt in range(3):
                waiting = spawn(locks.lock("taken", wait=20).acquire)
                portcullis.clock.until_blocked(1)
                assert others.info("taken").fields["waiters"][0]["client"] != client
                # As Ctrl-C ends it: the client closes the connection.
                admin.execute_command("CLIENT", "UNBLOCK", others.info("taken").fields["waiters"][0]["client"])
                assert waiting.result() is None
        assert locks.info("a").holders[0].gone is None
        grant.release()


async def test_a_cancelled_task_leaves_holders_connected(portcullis, alocks):
    async with portcullis.async_locks() as others, others.lock("taken"):
        grants = [await alocks.lock(f"n:{number}", lease=60, wait=5).acquire() for number in range(3)]
        for _ in range(4):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(alocks.lock("taken", wait=20).acquire(), 0.03)
        await asyncio.sleep(0.05)
        for number in range(3):
            assert (await alocks.info(f"n:{number}")).holders[0].gone is None
        await others._core.call([("DEL", "n:0", "n:1", "n:2")], until=0)
        for grant in grants:
            await asyncio.wait_for(grant.lost.wait(), 5)
            with pytest.raises(NotHeldError):
                await grant.release()


@pytest.mark.parametrize("renew", [True, False])
def test_a_grant_whose_connection_has_ended_lives_on_another_one(portcullis, locks, renew):
    grants = [locks.lock("a", lease=60, renew=renew).acquire(), locks.semaphore("s", 2, lease=60, renew=renew).acquire()]
    grants.append(locks.all(["b", "c"], lease=60, renew=renew).acquire())
    with portcullis.client() as admin:
        admin.execute_command("CLIENT", "KILL", "ID", holder(locks)["client"])
        for name in "asbc":
            until(lambda: locks.info(name).holders[0].gone is None, 5)
        admin.delete("a", "s", "c")
        for grant in grants:
            assert grant.lost.wait(5), "a push tells of it long before the renewal"
            assert "deleted by client" in grant.lost_because
            with pytest.raises(NotHeldError):
                grant.release()
        assert admin.execute_command("DEL", "b") == 0, "the release of several locks releases what is left"


@pytest.mark.parametrize("renew", [True, False])
async def test_the_same_on_asyncio(portcullis, alocks, renew):
    grant = await alocks.lock("a", lease=60, renew=renew).acquire()
    admin = portcullis.async_client()
    await admin.execute_command("CLIENT", "KILL", "ID", (await alocks.info("a")).fields["holders"][0]["client"])

    async def is_connected():
        return (await alocks.info("a")).holders[0].gone is None

    await until_async(is_connected, 5)
    await admin.delete("a")
    await asyncio.wait_for(grant.lost.wait(), 5)
    assert "deleted by client" in grant.lost_because
    with pytest.raises(NotHeldError):
        await grant.release()
    await admin.aclose()


def test_a_move_does_not_extend_a_lease_that_is_not_renewed(portcullis, locks):
    portcullis.clock.freeze()
    grants = [locks.lock("a", lease=30, renew=False).acquire(), locks.semaphore("s", 2, lease=30, renew=False, owner="me").acquire()]
    portcullis.clock.advance(20)
    clients = {name: holder(locks, name)["client"] for name in "as"}
    with portcullis.client() as admin:
        admin.execute_command("CLIENT", "KILL", "ID", holder(locks)["client"])
    until(lambda: all(holder(locks, name)["client"] != clients[name] for name in "as"), 5)
    assert all(locks.info(name).holders[0].lease <= 10 for name in "as")
    portcullis.clock.advance(10)
    assert all(grant.lost.is_set() for grant in grants)


def test_a_move_does_not_shorten_a_lease_that_is_extended_meanwhile(portcullis, locks):
    grant = locks.lock("a", lease=2, renew=False).acquire()
    client = holder(locks)["client"]
    # The move arrives, and is answered after the extension.
    portcullis.faults.add("slow", ("DELAY", 400), on="lock.renew", times=1)
    with portcullis.client() as admin:
        admin.execute_command("CLIENT", "KILL", "ID", client)
        until(lambda: portcullis.faults.fired("slow") == 1, 5)
        admin.execute_command("LOCK.RENEW", "a", grant.owner, 30_000)
        until(lambda: holder(locks)["client"] != client, 5)
        time.sleep(0.5)
        assert admin.pttl("a") > 25_000
    grant.release()


def test_a_move_leaves_the_longer_lease_of_the_same_owner_to_a_user_who_may_not_look_at_locks(portcullis):
    with portcullis.client() as admin:
        admin.execute_command("ACL", "SETUSER", "ann", "on", ">secret", "~*", "&*", "+@all", "-lock.info")
        with portcullis.locks(username="ann", password="secret") as locks, portcullis.locks() as others:
            short = locks.lock("a", lease=2, renew=False, owner="me").acquire()
            long = locks.lock("a", lease=60, owner="me").acquire()
            client = holder(others)["client"]
            admin.execute_command("CLIENT", "KILL", "ID", client)
            until(lambda: holder(others)["client"] != client, 5)
            time.sleep(0.2)
            assert admin.pttl("a") > 55_000
            long.release()
            short.release()
        admin.execute_command("ACL", "DELUSER", "ann")


def test_a_grant_stays_where_it_is_on_a_server_that_does_not_know_of_moves(portcullis, locks):
    grant = locks.lock("a", lease=1, renew=False).acquire()
    client = holder(locks)["client"]
    portcullis.faults.add("older", ("ERROR", "ERR the lease is not an integer or out of range"), on="lock.renew")
    with portcullis.client() as admin:
        admin.execute_command("CLIENT", "KILL", "ID", client)
    until(lambda: portcullis.faults.fired("older") == 1, 5)
    assert grant.is_held and grant.check() and holder(locks)["client"] == client
    assert grant.lost.wait(5) and grant.lost_because == "its lease ended"
    assert portcullis.faults.fired("older") == 1, "it is tried once"
    until(lambda: locks.info("a") is None, 5)


def test_a_server_that_has_restarted_is_asked_at_once(portcullis):
    with Portcullis(program=portcullis.program) as server, server.locks() as locks, server.client() as other:
        grants = [locks.lock("free", lease=60).acquire(), locks.lock("taken", lease=60).acquire()]
        told = threading.Event()
        grants[1].on_lost(lambda grant: told.set())
        time.sleep(0.1)
        # By another connection, as nothing of this process's doing.
        other.execute_command("FAULT", "RESTART")
        begun = time.monotonic()
        assert grants[0].lost.wait(10) and told.wait(10) and time.monotonic() - begun < 5, "not only at the next renewal"
        for grant in grants:
            assert grant.lost_because.startswith("the server does not know the grant: it has restarted without its data, or has lost its last writes")
            with pytest.raises(NotHeldError, match="does not know the grant"):
                grant.release()


def test_a_restart_is_the_reason_when_somebody_else_has_the_lock_meanwhile(portcullis, locks):
    portcullis.faults.add("slow", "DROP", on="lock.renew")
    grant = locks.lock("a", lease=60).acquire()
    with portcullis.client() as other:
        other.execute_command("FAULT", "RESTART")
    with portcullis.client() as other:
        other.execute_command("LOCK.ACQUIRE", "a", "ann", 60_000)
        with pytest.raises(NotHeldError, match=r"restarted without its data, .*\(now held by 'ann' for \d+ ms\)"):
            grant.release()
        other.delete("a")


async def test_a_restart_is_heard_on_asyncio(portcullis, alocks):
    grant = await alocks.lock("a", lease=60).acquire()
    other = portcullis.async_client()
    await other.execute_command("FAULT", "RESTART")
    await asyncio.wait_for(grant.lost.wait(), 5)
    assert "restarted without its data" in grant.lost_because
    with pytest.raises(NotHeldError):
        await grant.release()
    await other.aclose()


def test_many_grants_of_waits_share_connections(portcullis, locks):
    with portcullis.client() as client:
        before = client.info("stats")["total_connections_received"]
        grants = [locks.lock(f"n:{number}", wait=5).acquire() for number in range(200)]
        assert client.info("stats")["total_connections_received"] - before <= 9
        # A session has its own all the same.
        session = locks.lock("s", session=True, wait=5).acquire()
        assert session._held.link.grants == 0 and session._held.link not in locks._core._idle
    for grant in [*grants, session]:
        grant.release()


def test_grants_are_counted_where_they_live(locks):
    grants = [locks.lock(f"n:{number}").acquire() for number in range(3)]
    (link,) = locks._core._idle
    assert link.grants == 3
    for grant in grants:
        grant.release()
    assert link.grants == 0


def test_a_full_pool_keeps_the_connections_of_grants(portcullis, spawn):
    with portcullis.locks(idle_max=2) as locks, portcullis.locks() as others:
        with others.lock("a"):
            waiting = [spawn(lambda: locks.lock("a", wait=30, shared=True).acquire().release()) for _ in range(4)]
            portcullis.clock.until_blocked(4)
            kept = locks.lock("kept", lease=60, wait=1).acquire()
            client = holder(locks, "kept")["client"]
        for thread in waiting:
            thread.result()
        pool = locks._core._idle
        assert len(pool) <= 2 and sum(link.grants for link in pool) == 1
        fields = holder(locks, "kept")
        assert fields["gone"] is None and fields["client"] == client and fields["renewed"] == 0
        kept.release()


def test_an_unused_connection_makes_way_for_one_of_a_grant(portcullis):
    with portcullis.locks(idle_max=1) as locks:
        run, core = _link.run, locks._core
        unused = run(core.take())
        grant = locks.lock("kept", lease=60).acquire()
        home = run(core.take())
        core.give(unused)
        core.give(home)
        assert home.grants == 1 and core._idle == [home] and home.is_open and not unused.is_open
        grant.release()
