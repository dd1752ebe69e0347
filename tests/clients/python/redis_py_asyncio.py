"""redis-py, asyncio: the same jobs in one event loop."""

import asyncio
import time

import redis.asyncio as redis
from redis.exceptions import LockError, LockNotOwnedError, WatchError

from suite import HOST, PORT, PROTOCOL, Witness, case, main


def connect():
    return redis.Redis(host=HOST, port=PORT, protocol=PROTOCOL, decode_responses=True, max_connections=100)


def with_client(function):
    async def run():
        async with connect() as client:
            await client.flushall()
            await function(client)

    run.__name__ = function.__name__
    return case(run)


@with_client
async def mutual_exclusion(client):
    witness = Witness()

    async def work():
        for _ in range(15):
            async with client.lock("lock:async", timeout=10, sleep=0.001):
                with witness:
                    await asyncio.sleep(0.0005)

    await asyncio.gather(*(work() for _ in range(8)))
    witness.verdict(120)


@with_client
async def a_dead_holder_is_outlived(client):
    assert await client.lock("lock:dead", timeout=0.3).acquire()
    start = time.monotonic()
    assert await client.lock("lock:dead", timeout=1, sleep=0.005).acquire(blocking_timeout=5)
    assert 0.2 < time.monotonic() - start < 1.5


@with_client
async def another_owner_is_refused(client):
    holder, other = client.lock("lock:owner", timeout=10), client.lock("lock:owner", timeout=10)
    assert await holder.acquire() and not await other.acquire(blocking=False)
    other.local.token = b"forged"
    try:
        await other.release()
        raise AssertionError("released by another")
    except LockNotOwnedError:
        pass
    assert await holder.owned()
    await holder.release()
    try:
        await holder.release()
        raise AssertionError("released twice")
    except LockError:
        pass


@with_client
async def renewal_and_loss(client):
    lock = client.lock("lock:renewal", timeout=0.3)
    assert await lock.acquire()
    for _ in range(3):
        await asyncio.sleep(0.2)
        assert await lock.reacquire()
    assert await lock.extend(10) and await client.pttl("lock:renewal") > 9_000
    await lock.release()
    lost = client.lock("lock:lost", timeout=0.05)
    assert await lost.acquire()
    await asyncio.sleep(0.1)
    try:
        await lost.release()
        raise AssertionError("a lost lock was released")
    except LockNotOwnedError:
        pass


@with_client
async def transactions(client):
    await client.set("total", 0)

    async def add():
        async with client.pipeline() as pipe:
            while True:
                try:
                    await pipe.watch("total")
                    total = int(await pipe.get("total"))
                    pipe.multi()
                    pipe.set("total", total + 1)
                    await pipe.execute()
                    return
                except WatchError:
                    continue

    await asyncio.gather(*(add() for _ in range(40)))
    assert await client.get("total") == "40"


@with_client
async def waiting_in_line(client):
    order = []

    async def wait(number):
        await asyncio.sleep(number * 0.02)
        _, job = await client.blpop(["jobs"], timeout=10)
        order.append((number, job))

    waiters = [asyncio.create_task(wait(number)) for number in range(5)]
    await asyncio.sleep(0.3)
    await client.rpush("jobs", *"abcde")
    await asyncio.gather(*waiters)
    assert sorted(order) == list(enumerate("abcde")), order


@with_client
async def publish_and_subscribe(client):
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("news")
        assert (await pubsub.get_message(timeout=2))["type"] == "subscribe"
        assert await client.publish("news", "hello") == 1
        assert (await pubsub.get_message(timeout=2))["data"] == "hello"


main()
