"""redis-py's RedisCluster: a lock by hand and its own Lock, on a cluster of one node."""

import threading
import time

from redis.cluster import RedisCluster
from redis.exceptions import (
    CrossSlotTransactionError,
    LockError,
    LockNotOwnedError,
    NoScriptError,
    RedisClusterException,
    ResponseError,
)

from suite import HOST, PORT, PROTOCOL, Witness, case, elapsed, main, raises, threads

RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
RENEW = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end"

client = RedisCluster(host=HOST, port=PORT, protocol=PROTOCOL, decode_responses=True)
release, renew = (client.script_load(script) for script in (RELEASE, RENEW))


def acquire(name, token, lease_ms):
    while not client.set(name, token, nx=True, px=lease_ms):
        time.sleep(0.001)


@case
def one_node_has_all_slots():
    (node,) = client.get_nodes()
    assert (node.port, node.server_type) == (PORT, "primary"), node
    assert client.get_node_from_key("anything") == node and client.keyslot("foo") == 12182 == client.cluster_keyslot("foo")
    assert client.cluster_info()["cluster_state"] == "ok"
    (shown,) = client.cluster_nodes().values()
    assert shown["slots"] == [["0", "16383"]] and "master" in shown["flags"], shown
    assert shown["node_id"] == client.cluster_myid(node)
    assert list(client.cluster_slots()) == [(0, 16383)]
    (shard,) = client.cluster_shards()
    assert shard["slots"] in ([0, 16383], [(0, 16383)], [[0, 16383]]), shard
    assert client.info(target_nodes=node)["cluster_enabled"] == 1


@case
def mutual_exclusion():
    # Many names, so that all over the slots somebody holds something; workers meet at three of them.
    names = [f"lock:{number}" for number in range(3)]
    witnesses = {name: Witness() for name in names}

    def work(worker):
        for round in range(24):
            name, token = names[(worker + round) % 3], f"{worker}:{round}"
            acquire(name, token, 10_000)
            with witnesses[name]:
                time.sleep(0.0005)
            assert client.evalsha(release, 1, name, token) == 1

    threads(8, work)
    for witness in witnesses.values():
        witness.verdict(64)


@case
def a_dead_holder_is_outlived():
    acquire("lock", "dead", 200)
    seconds, _ = elapsed(lambda: acquire("lock", "next", 1000))
    assert 0.1 < seconds < 1 and client.get("lock") == "next", seconds
    assert client.evalsha(release, 1, "lock", "dead") == 0


@case
def another_owner_is_refused():
    acquire("lock", "me", 10_000)
    assert client.set("lock", "you", nx=True, px=10) is None
    assert client.evalsha(release, 1, "lock", "you") == 0 and client.evalsha(renew, 1, "lock", "you", 1) == 0
    assert client.get("lock") == "me" and client.pttl("lock") > 9_000
    assert client.evalsha(release, 1, "lock", "me") == 1 and client.get("lock") is None


@case
def renewal():
    acquire("lock", "me", 200)
    for _ in range(4):
        time.sleep(0.1)
        assert client.evalsha(renew, 1, "lock", "me", 200) == 1
    time.sleep(0.3)
    assert client.evalsha(renew, 1, "lock", "me", 200) == 0


@case
def the_librarys_own_lock():
    witness = Witness()

    def work(_):
        for _ in range(10):
            with client.lock("own", timeout=10, sleep=0.001), witness:
                time.sleep(0.0005)

    threads(6, work)
    witness.verdict(60)
    holder, other = client.lock("own", timeout=0.3), client.lock("own", timeout=10)
    assert holder.acquire() and not other.acquire(blocking=False)
    raises(LockError, other.release)
    other.local.token = b"forged"
    raises(LockNotOwnedError, other.release)
    assert holder.extend(10) and client.pttl("own") > 9_000
    holder.release()
    raises(LockError, holder.release)


@case
def scripts_survive_a_flush():
    acquire("lock", "me", 10_000)
    client.script_flush()
    raises(NoScriptError, lambda: client.evalsha(release, 1, "lock", "me"))
    script = client.register_script(RELEASE)
    assert script(keys=["lock"], args=["me"]) == 1


@case
def requests_keep_to_one_slot():
    raises(RedisClusterException, lambda: client.eval("return 1", 2, "a", "b"))
    raises(ResponseError, lambda: client.execute_command("MSET", "a", 1, "b", 2, target_nodes=client.get_random_node()))
    assert client.mset({"{n}a": 1, "{n}b": 2}) and client.mget("{n}a", "{n}b") == ["1", "2"]
    assert client.mset_nonatomic({f"n:{i}": i for i in range(50)})
    assert client.mget_nonatomic([f"n:{i}" for i in range(50)]) == [str(i) for i in range(50)]
    assert client.delete(*(f"n:{i}" for i in range(50))) == 50


@case
def pipelines_and_transactions():
    with client.pipeline() as pipe:
        for number in range(200):
            pipe.set(f"p:{number}", number).incr(f"p:{number}")
        assert pipe.execute()[1::2] == [number + 1 for number in range(200)]
    with client.pipeline(transaction=True) as pipe:
        replies = pipe.set("{t}n", 1).incr("{t}n").get("{t}n").execute()
        # In transactions of a cluster the library leaves the first as it came.
        assert replies == ["OK", 2, "2"], replies
    with client.pipeline(transaction=True) as pipe:
        raises(CrossSlotTransactionError, lambda: pipe.set("a", 1).set("b", 1).execute())
    client.set("{t}total", 0)

    def add(pipe):
        total = int(pipe.get("{t}total"))
        pipe.multi()
        pipe.set("{t}total", total + 1)

    threads(4, lambda _: [client.transaction(add, "{t}total") for _ in range(5)])
    assert client.get("{t}total") == "20"


@case
def scans_reach_all_slots():
    client.mset_nonatomic({f"scan:{i}": 1 for i in range(300)})
    assert len(set(client.scan_iter("scan:*", count=40))) == 300
    assert client.dbsize() == 300 and sorted(client.keys("scan:29?")) == [f"scan:29{i}" for i in range(10)]


@case
def a_released_lock_is_announced():
    got = []
    with client.pubsub() as waiter:
        waiter.ssubscribe("released")
        while not (message := waiter.get_sharded_message(timeout=2)):
            pass
        assert message["type"] == "ssubscribe"
        assert client.spublish("released", "lock") == 1
        waiting = threading.Thread(target=lambda: got.append(waiter.get_sharded_message(timeout=2)))
        waiting.start(), waiting.join(5)
    assert got[0]["type"] == "smessage" and got[0]["data"] == "lock", got


main(client.flushall)
