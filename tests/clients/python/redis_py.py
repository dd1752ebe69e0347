"""redis-py, synchronous: its Lock, pipelines, WATCH, pub/sub, blocking pops, scans and client-side cache."""

import threading
import time

import redis
from redis.cache import CacheConfig
from redis.exceptions import LockError, LockNotOwnedError, NoScriptError, ResponseError, WatchError

from suite import HOST, PORT, PROTOCOL, Skip, Witness, case, elapsed, main, raises, threads

pool = redis.ConnectionPool(host=HOST, port=PORT, protocol=PROTOCOL, decode_responses=True, max_connections=100)
client = redis.Redis(connection_pool=pool)


@case
def handshake():
    info = client.info()
    assert info["redis_version"] and info["role"] == "master" and info["loading"] == 0
    assert client.client_setname("worker-7") and client.client_getname() == "worker-7"
    assert client.ping() and client.echo("hello") == "hello"
    assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    assert client.time()[0] > 1_700_000_000


@case
def mutual_exclusion():
    witness = Witness()

    def work(_):
        for _ in range(20):
            with client.lock("lock:exclusion", timeout=10, sleep=0.001), witness:
                time.sleep(0.0005)

    threads(8, work)
    witness.verdict(160)


@case
def a_dead_holder_is_outlived():
    assert client.lock("lock:dead", timeout=0.3).acquire()
    seconds, taken = elapsed(lambda: client.lock("lock:dead", timeout=1, sleep=0.005).acquire(blocking_timeout=5))
    assert taken and 0.2 < seconds < 1.5, seconds


@case
def another_owner_is_refused():
    holder, other = client.lock("lock:owner", timeout=10), client.lock("lock:owner", timeout=10)
    assert holder.acquire() and not other.acquire(blocking=False)
    raises(LockError, other.release)
    other.local.token = b"forged"
    raises(LockNotOwnedError, other.release)
    assert holder.owned() and holder.locked()
    holder.release()
    assert not holder.locked()
    raises(LockError, holder.release)


@case
def renewal():
    lock = client.lock("lock:renewal", timeout=0.3)
    assert lock.acquire()
    for _ in range(4):
        time.sleep(0.15)
        assert lock.reacquire()
    assert lock.extend(10) and client.pttl("lock:renewal") > 9_000
    assert lock.extend(5, replace_ttl=True) and 4_000 < client.pttl("lock:renewal") <= 5_000
    lock.release()
    raises(LockError, lambda: lock.extend(1))


@case
def a_lost_lease_is_noticed():
    lock = client.lock("lock:lost", timeout=0.05)
    assert lock.acquire()
    time.sleep(0.1)
    raises(LockNotOwnedError, lock.release)


@case
def time_outs():
    assert client.lock("lock:timeout", timeout=10).acquire()
    seconds, taken = elapsed(lambda: client.lock("lock:timeout", sleep=0.01).acquire(blocking_timeout=0.2))
    assert not taken and 0.15 < seconds < 1


@case
def pipelines_and_transactions():
    with client.pipeline() as pipe:
        assert pipe.set("n", 1).incr("n").get("n").execute() == [True, 2, "2"]
    with client.pipeline(transaction=False) as pipe:
        assert pipe.set("n", 5).incr("n").lpush("n", "x").execute(raise_on_error=False)[:2] == [True, 6]
    with client.pipeline() as pipe:
        pipe.watch("n")
        client.set("n", 100)
        pipe.multi()
        pipe.incr("n")
        raises(WatchError, pipe.execute)
    client.set("total", 0)

    def add(pipe):
        total = int(pipe.get("total"))
        pipe.multi()
        pipe.set("total", total + 1)

    threads(8, lambda _: [client.transaction(add, "total") for _ in range(10)])
    assert client.get("total") == "80"


@case
def scripts():
    script = client.register_script("return {KEYS[1], ARGV[1], redis.call('incrby', KEYS[1], ARGV[1])}")
    assert script(keys=["counter"], args=[5]) == ["counter", "5", 5]
    client.script_flush()
    raises(NoScriptError, lambda: client.evalsha(script.sha, 1, "counter", 5))
    assert script(keys=["counter"], args=[5]) == ["counter", "5", 10]
    raises(ResponseError, lambda: client.eval("return redis.call('nonsense')", 0))


@case
def blocking_pops():
    got = []
    consumer = threading.Thread(target=lambda: got.extend(client.blpop(["jobs", "others"], timeout=5) for _ in range(3)))
    consumer.start()
    for job in ("a", "b", "c"):
        client.rpush("jobs", job)
        time.sleep(0.01)
    consumer.join(5)
    assert got == [("jobs", "a"), ("jobs", "b"), ("jobs", "c")] or got == [["jobs", j] for j in "abc"], got
    seconds, nothing = elapsed(lambda: client.blpop(["jobs"], timeout=0.2))
    assert nothing is None and seconds > 0.15
    client.rpush("from", "x")
    assert client.blmove("from", "to", 1) == "x" and client.lrange("to", 0, -1) == ["x"]
    assert client.zadd("queue", {"low": 1, "high": 9}) == 2
    assert [str(part) for part in client.bzpopmax("queue", timeout=1)] == ["queue", "high", "9.0"]


@case
def publish_and_subscribe():
    pubsub = client.pubsub()
    pubsub.subscribe("news")
    pubsub.psubscribe("lock:*")
    for _ in range(2):
        assert pubsub.get_message(timeout=2)["type"].endswith("subscribe")
    assert client.publish("news", "hello") == 1 and client.publish("lock:7", "free") == 1
    first, second = pubsub.get_message(timeout=2), pubsub.get_message(timeout=2)
    assert (first["type"], first["channel"], first["data"]) == ("message", "news", "hello")
    assert (second["type"], second["pattern"], second["data"]) == ("pmessage", "lock:*", "free")
    assert client.pubsub_numsub("news") == [("news", 1)] or client.pubsub_numsub("news") == {"news": 1}
    pubsub.close()


@case
def expiry_events():
    client.config_set("notify-keyspace-events", "Ex")
    pubsub = client.pubsub(ignore_subscribe_messages=True)
    pubsub.subscribe("__keyevent@0__:expired")
    pubsub.get_message(timeout=1)
    client.set("short", "x", px=50)
    deadline = time.monotonic() + 5
    message = None
    while message is None and time.monotonic() < deadline:
        message = pubsub.get_message(timeout=1)
    assert message and message["data"] == "short"
    pubsub.close()
    client.config_set("notify-keyspace-events", "")


@case
def types():
    assert client.hset("h", mapping={"a": 1, "b": 2}) == 2 and client.hgetall("h") == {"a": "1", "b": "2"}
    assert client.sadd("s", "x", "y") == 2 and client.smembers("s") == {"x", "y"} and client.sismember("s", "x")
    assert client.zadd("z", {"a": 1, "b": 2.5}) == 2
    assert [list(pair) for pair in client.zrange("z", 0, -1, withscores=True)] == [["a", 1.0], ["b", 2.5]]
    assert client.rpush("l", 1, 2, 3) == 3 and client.lrange("l", 0, -1) == ["1", "2", "3"] and client.lpos("l", "2") == 1
    assert client.xadd("x", {"f": "v"}, id="1-1") == "1-1" and client.xlen("x") == 1
    assert client.setbit("bits", 7, 1) == 0 and client.bitcount("bits") == 1
    assert client.pfadd("hll", "a", "b") == 1 and client.pfcount("hll") == 2
    assert {client.type(key) for key in "hszlx"} == {"hash", "set", "zset", "list", "stream"}
    dump = redis.Redis(host=HOST, port=PORT, protocol=PROTOCOL).dump("z")
    client.restore("copy", 0, dump)
    assert client.zscore("copy", "b") == 2.5


@case
def scans():
    for i in range(500):
        client.set(f"scan:{i}", i)
    assert set(client.scan_iter("scan:*", count=50)) == {f"scan:{i}" for i in range(500)}
    client.hset("big", mapping={f"f{i}": i for i in range(1000)})
    assert len(dict(client.hscan_iter("big"))) == 1000
    client.sadd("members", *range(1000))
    assert len(set(client.sscan_iter("members"))) == 1000
    client.zadd("scores", {str(i): i for i in range(1000)})
    assert len(dict(client.zscan_iter("scores"))) == 1000


@case
def streams():
    client.xgroup_create("tasks", "workers", id="0", mkstream=True)
    for i in range(10):
        client.xadd("tasks", {"n": i})
    done = []

    def work(number):
        while True:
            read = client.xreadgroup("workers", f"w{number}", {"tasks": ">"}, count=2, block=100)
            if not read:
                return
            batches = read.values() if isinstance(read, dict) else [entries for _, entries in read]
            for entries in batches:
                for entry_id, fields in entries[0] if isinstance(entries[0], list) else entries:
                    done.append(int(fields["n"]))
                    assert client.xack("tasks", "workers", entry_id) == 1

    threads(3, work)
    assert sorted(done) == list(range(10)), done
    assert client.xpending("tasks", "workers")["pending"] == 0


@case
def client_side_cache():
    if PROTOCOL == 2:
        raise Skip("client-side caching needs RESP3")
    if tuple(int(part) for part in client.info()["redis_version"].split(".")[:2]) < (7, 4):
        raise Skip("this client caches with servers from 7.4 on only")
    caching = redis.Redis(host=HOST, port=PORT, protocol=3, cache_config=CacheConfig(), decode_responses=True)
    client.set("cached", "old")
    assert caching.get("cached") == "old" and caching.get("cached") == "old"
    client.set("cached", "new")
    deadline = time.monotonic() + 2
    while caching.get("cached") != "new":
        assert time.monotonic() < deadline, "the cached value outlived its change"
    caching.close()


@case
def administration():
    assert client.dbsize() >= 0 and client.client_list() and client.client_id() > 0
    client.zadd("scores", {"a": 1})
    assert client.memory_usage("scores") > 0 and client.object("encoding", "scores") == "listpack"
    assert isinstance(client.slowlog_get(5), list) and client.slowlog_len() >= 0
    assert isinstance(client.command_count(), int) and client.command_count() > 200
    assert client.acl_whoami() == "default" and "default" in client.acl_users()
    raises(ResponseError, lambda: client.execute_command("NO-SUCH-COMMAND"))


main(before_each=client.flushall)
