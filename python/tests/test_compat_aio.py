"""The drop-in for redis.asyncio.lock.Lock, against redis-py's own as well."""

import asyncio
import time

import pytest
import redis.asyncio.lock
from redis.exceptions import LockError, LockNotOwnedError

from portcullis_lock.compat import aio as compat


@pytest.fixture(params=["native", "redis-py"])
def kind(request):
    return compat.Lock if request.param == "native" else redis.asyncio.lock.Lock


@pytest.fixture
async def make(portcullisdb_async, kind):
    yield lambda name="a", **options: portcullisdb_async.lock(name, lock_class=kind, **options)
    await compat._locks.of(portcullisdb_async).close(release=False)


async def test_it_is_locked_and_owned_while_held(make):
    lock, other = make(timeout=10), make(sleep=0.01)
    assert await lock.acquire(blocking=False) is True
    assert await lock.locked() and await lock.owned() and not await other.owned()
    assert await other.acquire(blocking_timeout=0.05) is False
    waiting = asyncio.create_task(other.acquire())
    await asyncio.sleep(0.02)
    await lock.release()
    assert await waiting is True
    await other.release()
    with pytest.raises(LockError, match="Cannot release an? (lock that's not owned or is already )?unlocked"):
        await lock.release()


async def test_as_a_context_manager(make):
    async with make(timeout=10) as lock:
        assert await lock.owned()
        begun = time.monotonic()
        with pytest.raises(LockError, match="Unable to acquire lock"):
            async with make(blocking_timeout=0.05, sleep=0.01):
                pass
        assert time.monotonic() - begun < 1
    assert not await lock.locked()


async def test_extend_reacquire_and_loss(portcullis, portcullisdb_async, make):
    portcullis.clock.freeze()
    lock = make(timeout=10)
    with pytest.raises(LockError, match="unlocked"):
        await lock.extend(1)
    await lock.acquire(token="mine")
    assert lock.local.token == b"mine"
    assert await lock.extend(10) is True and await portcullisdb_async.pttl("a") == 20_000
    assert await lock.extend(7, replace_ttl=True) is True and await portcullisdb_async.pttl("a") == 7000
    assert await lock.reacquire() is True and await portcullisdb_async.pttl("a") == 10_000
    assert await make().acquire(blocking=False, token="mine") is False
    await portcullisdb_async.delete("a")
    for call in (lambda: lock.extend(1), lock.reacquire, lock.release):
        with pytest.raises(LockNotOwnedError, match="no longer owned"):
            await call()


async def test_both_kinds_keep_each_other_out(portcullisdb_async):
    ours, theirs = compat.Lock(portcullisdb_async, "a", timeout=10), redis.asyncio.lock.Lock(portcullisdb_async, "a", timeout=10)
    async with ours:
        assert await theirs.acquire(blocking=False) is False
    async with theirs:
        assert await ours.acquire(blocking=False) is False
    await compat._locks.of(portcullisdb_async).close()
