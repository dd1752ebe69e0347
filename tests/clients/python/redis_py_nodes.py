"""redis-py finds the leader of replicated nodes: by Sentinel and by the cluster's slots, blocking and asyncio, in RESP2 and RESP3."""

import asyncio
import threading

import redis
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from failover import CLUSTER, SENTINELS, client, main, repeated

# Far above what a reply takes.
TIMEOUT_S = 0.5
# The retries of redis-py do not last for an election: a connection by Sentinel tries its old address (redis-py issue 3874), and a
# cluster's client tries without pauses.
GIVES_UP = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, redis.exceptions.ClusterError)


def by_sentinel(protocol):
    # By default, a node that is down is tried for seconds before the next one is asked.
    sentinel = Sentinel(SENTINELS, socket_timeout=TIMEOUT_S, sentinel_kwargs={"retry": Retry(NoBackoff(), 0), "socket_timeout": TIMEOUT_S})
    return repeated(sentinel.master_for("mymaster", protocol=protocol, socket_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 1)).execute_command, GIVES_UP)


def by_slots(protocol):
    nodes = [ClusterNode(*node) for node in CLUSTER]
    connected = RedisCluster(startup_nodes=nodes, protocol=protocol, socket_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 3))
    return repeated(connected.execute_command, GIVES_UP)


@client
def sentinel_resp2():
    return by_sentinel(2)


@client
def sentinel_resp3():
    return by_sentinel(3)


@client
def cluster_resp2():
    return by_slots(2)


@client
def cluster_resp3():
    return by_slots(3)


def in_loop(connect):
    """Calls from a thread that has no event loop."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def wait(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    async def begin():
        return connect()

    connected = wait(begin())
    return repeated(lambda *words: wait(connected.execute_command(*words)), GIVES_UP)


@client
def sentinel_asyncio():
    def connect():
        settings = {"retry": AsyncRetry(NoBackoff(), 0), "socket_timeout": TIMEOUT_S}
        sentinel = AsyncSentinel(SENTINELS, sentinel_kwargs=settings)
        return sentinel.master_for("mymaster", socket_timeout=TIMEOUT_S, retry=AsyncRetry(NoBackoff(), 1))

    return in_loop(connect)


@client
def cluster_asyncio():
    def connect():
        host, port = CLUSTER[0]
        return AsyncRedisCluster(host=host, port=port, socket_timeout=TIMEOUT_S, retry=AsyncRetry(NoBackoff(), 3))

    return in_loop(connect)


if __name__ == "__main__":
    main()
