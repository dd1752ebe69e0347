"""Locks on asyncio. What is the same code as in blocking code is tested there."""

import asyncio
import gc

import pytest
import redis.exceptions

import portcullis_lock
from portcullis_lock import DeadlockError, NotAcquiredError, NotHeldError, StaleTokenError, aio
from portcullis_lock._keeper import Keeper
from waiting import until_async as until


async def test_a_grant_has_a_token_and_ends_with_the_block(alocks):
    async with alocks.lock("a", lease=10) as grant:
        assert grant.is_held and await grant.check() and 9 < grant.remaining() <= 10 and await grant.renew() > 9
        with pytest.raises(NotAcquiredError, match=f"held by '{grant.owner}'"):
            async with alocks.lock("a", wait=0.01):
                pass
    assert not grant.is_held and await alocks.info("a") is None
    await grant.release()


async def test_connect_is_awaited_or_entered(portcullis):
    locks = await portcullis_lock.aio.connect(portcullis.url)
    assert (await locks.ping()).startswith("Portcullis at")
    grant = await locks.lock("a").acquire()
    async with aio.connect(portcullis.url) as others:
        assert await others.lock("a").try_acquire() is None
    assert grant.is_held
    await locks.close()
    assert portcullis.leaked_locks() == []


async def test_what_a_newcomer_forgets_is_said():
    with pytest.raises(AttributeError, match=r"no 'lock': locks = await connect"):
        aio.connect("redis://127.0.0.1:1").lock("a")
    with pytest.raises(redis.exceptions.ConnectionError, match="127.0.0.1:1.*Start the server with `portcullis serve`"):
        async with aio.connect("redis://127.0.0.1:1") as locks:
            await locks.ping()


def test_locks_are_made_before_the_loop_and_in_a_thread_without_one(portcullis, spawn):
    made = spawn(lambda: aio.over(portcullis.client())).result()

    async def main():
        async with made, made.lock("a", lease=0.3) as grant:
            await asyncio.sleep(0.5)
            assert await grant.check()

    asyncio.run(main())


async def test_it_comes_over_from_a_client(portcullis):
    client = portcullis.async_client(db=2)
    async with portcullis_lock.aio.over(client) as locks, locks.lock("a"):
        assert await client.exists("a")
    await client.aclose()


async def test_many_tasks_wait_at_once(alocks):
    inside, most, tokens = 0, 0, []

    async def work():
        nonlocal inside, most
        async with alocks.lock("a", wait=20) as grant:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            tokens.append(grant.token)
            inside -= 1

    await asyncio.gather(*(work() for _ in range(100)))
    assert most == 1 and len(tokens) == 100 and tokens == sorted(tokens)


async def test_many_tasks_that_do_not_wait_share_connections(portcullis, alocks):
    client = portcullis.client()
    before = client.info("stats")["total_connections_received"]
    grants = await asyncio.gather(*(alocks.lock(f"n:{number}").acquire() for number in range(200)))
    assert client.info("stats")["total_connections_received"] - before < 25
    await asyncio.gather(*(grant.release() for grant in grants))


async def test_one_description_serves_many_tasks(alocks):
    lock = alocks.semaphore("s", 10, wait=5)

    async def work():
        async with lock as grant:
            await asyncio.sleep(0.01)
            return grant.token

    tokens = await asyncio.gather(*(work() for _ in range(20)))
    assert len(set(tokens)) == 20 and await alocks.info("s") is None


async def test_a_cancelled_wait_leaves_the_queue_at_once(portcullis, alocks):
    async with alocks.lock("a"):
        task = asyncio.create_task(alocks.lock("a", wait=30).acquire())
        await portcullis.clock.aio.until_blocked(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await alocks.info("a")).waiters == ()


async def test_a_grant_that_races_with_a_cancellation_is_given_back(portcullis, alocks):
    portcullis.faults.add("late", "DELAY-REPLY 20000", on="lock.acquire", times=1)
    client = portcullis.async_client()
    task = asyncio.create_task(alocks.lock("a").acquire())
    await until(lambda: client.exists("a"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await client.exists("a")
    await client.aclose()


async def test_cancellations_at_any_time_leave_nothing(portcullis, alocks):
    """A grant and a cancellation at nearly the same time, again and again."""
    for step in range(60):
        holder = await alocks.lock("a").acquire()
        task = asyncio.create_task(alocks.lock("a", wait=30).acquire())
        await portcullis.clock.aio.until_blocked(1)
        release = asyncio.create_task(holder.release())
        for _ in range(step % 12):
            await asyncio.sleep(0)
        task.cancel()
        try:
            grant = await task
        except asyncio.CancelledError:
            grant = None
        await release
        if grant is not None:
            await grant.release()
        assert portcullis.leaked_locks() == []


async def test_a_cancelled_release_releases(portcullis):
    async with portcullis.async_locks(timeout=0.3) as locks:
        grant = await locks.lock("a").acquire()
        portcullis.faults.add("lost", "DROP", on="lock.release", times=1)
        task = asyncio.create_task(grant.release())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await locks.info("a") is None


async def test_a_release_that_is_cancelled_before_its_turn_releases(alocks):
    grant = await alocks.lock("a").acquire()
    turn = alocks._core.world.turn()
    for _ in range(16):
        await turn.__aenter__()
    task = asyncio.create_task(grant.release())
    await asyncio.sleep(0.01)
    assert not grant.released, "it is renewed until its turn"
    task.cancel()
    await asyncio.sleep(0.01)
    for _ in range(16):
        await turn.__aexit__(None, None, None)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await alocks.info("a") is None


async def test_lost_replies_leave_one_hold(portcullis):
    async with portcullis.async_locks(timeout=0.2) as locks:
        for fault in ("DROP-REPLY", "CLOSE-AFTER", "RESET-AFTER", "DROP"):
            portcullis.faults.add("acquire", fault, on="lock.acquire", times=1)
            portcullis.faults.add("release", fault, on="lock.release", times=1)
            async with locks.lock("a", owner="me"):
                assert (await locks.info("a")).holders[0].holds == 1
            assert await locks.info("a") is None
            portcullis.faults.reset()


async def test_a_thousand_locks_are_renewed_by_one_task(alocks):
    before = len(asyncio.all_tasks())
    grants = await asyncio.gather(*(alocks.lock(f"n:{number}", lease=4).acquire() for number in range(1000)))
    assert len(asyncio.all_tasks()) == before + 1
    await asyncio.sleep(4.5)
    assert all(grant.is_held for grant in grants)
    await asyncio.gather(*(grant.release() for grant in grants))


async def test_short_grants_do_not_wake_the_keeper_each_time(alocks, monkeypatch):
    steps, step = [], Keeper.step

    def counted(self):
        steps.append(self)
        return step(self)

    monkeypatch.setattr(Keeper, "step", counted)
    for _ in range(300):
        async with alocks.lock("a", lease=60):
            pass
    assert 0 < len(steps) < 10


async def test_a_grant_after_a_planned_step_of_a_released_one_is_renewed(alocks, monkeypatch):
    monkeypatch.setattr("portcullis_lock._keeper_aio._LINGER", 60.0)
    for _ in range(2):
        async with alocks.lock("a", lease=0.6):
            pass
    async with alocks.lock("b", lease=0.9) as grant:

        async def is_renewed_twice():
            return (await alocks.info("b")).fields["holders"][0]["renewed"] >= 2

        await until(is_renewed_twice)
        assert grant.is_held


async def test_a_lost_lock_is_told_by_a_push(portcullis, alocks):
    client = portcullis.async_client()
    grant, told = await alocks.lock("a", lease=60).acquire(), []
    grant.on_lost(told.append)
    await client.delete("a")
    await asyncio.wait_for(grant.lost.wait(), 5)
    assert told == [grant] and "deleted" in grant.lost_because
    with pytest.raises(NotHeldError, match="deleted"):
        await grant.release()
    await client.aclose()


async def test_without_renewal_it_is_lost_when_its_lease_ends(alocks):
    grant = await alocks.lock("a", lease=0.1, renew=False).acquire()
    await asyncio.wait_for(grant.lost.wait(), 5)
    assert "lease ended" in grant.lost_because

    async def is_free():
        return await alocks.info("a") is None

    await until(is_free)


async def test_a_session_outlives_its_connection(portcullis, alocks):
    async def holder():
        fields = (await alocks.info("a")).fields["holders"][0]
        return fields["client"] if fields["gone"] is None else before

    async with alocks.lock("a", session=True, grace=5) as grant:
        before = None
        before = await holder()
        client = portcullis.async_client()
        await client.execute_command("CLIENT", "KILL", "ID", before)

        async def moved():
            return await holder() != before

        await until(moved)
        assert grant.is_held and await grant.check()
        await client.aclose()


async def test_the_rest_is_as_in_blocking_code(portcullis, alocks):
    async with alocks.all(["b", "a"]) as both:
        assert set(both.tokens) == {"a", "b"}
    latch = alocks.latch("parts")
    assert await latch.set(1, ttl=60)
    waiting = asyncio.create_task(latch.wait())
    await portcullis.clock.aio.until_blocked(1)
    assert await latch.down() == 0 and await waiting
    async with alocks.lock("a") as first:
        pass
    async with alocks.lock("a") as second:
        await alocks.guard("r").write(second)
        with pytest.raises(StaleTokenError):
            await alocks.guard("r").write(first.token)
        assert await alocks.break_("a", second.token, "why")
        with pytest.raises(NotHeldError, match="broken by client .*: why"):
            await second.release()
    assert (await alocks.throttle("t", 0, 1, 60)).allowed
    async with alocks.lock("x", owner="ann"), alocks.lock("y", owner="bob"):
        task = asyncio.create_task(alocks.lock("x", owner="bob", wait=5).acquire())
        await portcullis.clock.aio.until_blocked(1)
        with pytest.raises(DeadlockError):
            await alocks.lock("y", owner="ann", wait=5).acquire()
        task.cancel()


def test_a_loop_that_ends_leaves_no_lock_and_no_warning(portcullis, recwarn):
    async def main():
        locks = await aio.connect(portcullis.url)
        async with locks.lock("a"):
            waiting = asyncio.create_task(locks.lock("a", wait=30).acquire())
            await portcullis.clock.aio.until_blocked(1)
        del waiting
        await locks.close()

    asyncio.run(main())
    gc.collect()
