"""redis-py's RedisCluster, asyncio: the same jobs in one event loop."""

import asyncio
import time

from redis.asyncio.cluster import RedisCluster
from redis.exceptions import LockNotOwnedError, NoScriptError, RedisClusterException

from suite import HOST, PORT, PROTOCOL, Witness, case, main

RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


def with_client(function):
    async def run():
        async with RedisCluster(host=HOST, port=PORT, protocol=PROTOCOL, decode_responses=True) as client:
            await client.flushall()
            await function(client, await client.script_load(RELEASE))

    run.__name__ = function.__name__
    return case(run)


async def acquire(client, name, token, lease_ms):
    while not await client.set(name, token, nx=True, px=lease_ms):
        await asyncio.sleep(0.001)


@with_client
async def one_node_has_all_slots(client, _):
    (node,) = client.get_nodes()
    assert (node.port, node.server_type) == (PORT, "primary"), node
    assert client.keyslot("foo") == 12182 == await client.cluster_keyslot("foo")
    assert (await client.cluster_info())["cluster_state"] == "ok"


@with_client
async def mutual_exclusion(client, release):
    names = [f"lock:{number}" for number in range(3)]
    witnesses = {name: Witness() for name in names}

    async def work(worker):
        for round in range(24):
            name, token = names[(worker + round) % 3], f"{worker}:{round}"
            await acquire(client, name, token, 10_000)
            with witnesses[name]:
                await asyncio.sleep(0.0005)
            assert await client.evalsha(release, 1, name, token) == 1

    await asyncio.gather(*(work(worker) for worker in range(8)))
    for witness in witnesses.values():
        witness.verdict(64)


@with_client
async def a_dead_holder_is_outlived(client, release):
    await acquire(client, "lock", "dead", 200)
    start = time.monotonic()
    await acquire(client, "lock", "next", 1000)
    assert 0.1 < time.monotonic() - start < 1
    assert await client.evalsha(release, 1, "lock", "dead") == 0 and await client.get("lock") == "next"


@with_client
async def another_owner_is_refused(client, release):
    await acquire(client, "lock", "me", 10_000)
    assert await client.set("lock", "you", nx=True, px=10) is None
    assert await client.evalsha(release, 1, "lock", "you") == 0 and await client.get("lock") == "me"
    assert await client.evalsha(release, 1, "lock", "me") == 1 and await client.get("lock") is None


@with_client
async def renewal(client, _):
    await acquire(client, "lock", "me", 200)
    for _ in range(4):
        await asyncio.sleep(0.1)
        assert await client.pexpire("lock", 200)
    assert await client.get("lock") == "me"
    await asyncio.sleep(0.3)
    assert not await client.pexpire("lock", 200)


@with_client
async def the_librarys_own_lock(client, _):
    witness = Witness()

    async def work():
        for _ in range(10):
            async with client.lock("own", timeout=10, sleep=0.001):
                with witness:
                    await asyncio.sleep(0.0005)

    await asyncio.gather(*(work() for _ in range(6)))
    witness.verdict(60)
    lost = client.lock("own", timeout=0.05)
    assert await lost.acquire()
    await asyncio.sleep(0.1)
    try:
        await lost.release()
        raise AssertionError("a lost lock was released")
    except LockNotOwnedError:
        pass


@with_client
async def scripts_survive_a_flush(client, release):
    await acquire(client, "lock", "me", 10_000)
    await client.script_flush()
    try:
        await client.evalsha(release, 1, "lock", "me")
        raise AssertionError("a script is there after SCRIPT FLUSH")
    except NoScriptError:
        pass
    assert await client.eval(RELEASE, 1, "lock", "me") == 1


@with_client
async def pipelines_and_slots(client, _):
    pipe = client.pipeline()
    for number in range(200):
        pipe.set(f"p:{number}", number).incr(f"p:{number}")
    assert (await pipe.execute())[1::2] == [number + 1 for number in range(200)]
    async with client.pipeline(transaction=True) as pipe:
        assert await pipe.set("{t}n", 1).incr("{t}n").get("{t}n").execute() == [True, 2, "2"]
    try:
        await client.eval("return 1", 2, "a", "b")
        raise AssertionError("a script with keys of two slots was sent")
    except RedisClusterException:
        pass
    assert len({key async for key in client.scan_iter("p:*", count=40)}) == 200


main()
