"""Three nodes, whose leader is killed or stopped while 64 workers work."""

import asyncio
import math
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time

import pytest
import redis.sentinel
from waiting import until
from workers import PATIENCE, run_tasks, run_threads, visited

import portcullis_lock
from portcullis_lock import NoLeaderError

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/clients"))
import nodes  # noqa: E402


class Cluster(nodes.Nodes):
    """Nodes of which those that were killed come back."""

    def url(self):
        return "redis://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def sentinel_url(self):
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{port}" for port in self.ports) + "/mymaster"


KINDS = {"plain": [], "cluster-enabled": ["--cluster-enabled", "yes"]}


@pytest.fixture(params=KINDS)
def cluster(request, portcullis_proc):
    settings = KINDS[request.param]
    with tempfile.TemporaryDirectory() as directory, Cluster(portcullis_proc.program, directory, nodes.free_ports(6), *settings) as cluster:
        cluster.leader(), cluster.wait_for_votes()
        cluster.is_plain = not settings
        yield cluster


def connections(cluster):
    """Locks by each way to find the leader."""
    ways = [portcullis_lock.connect(cluster.url()), portcullis_lock.connect(cluster.sentinel_url())]
    if cluster.is_plain:
        sentinel = redis.sentinel.Sentinel([("127.0.0.1", port) for port in cluster.ports])
        ways.append(portcullis_lock.over(sentinel.master_for("mymaster")))
    else:
        ways.append(portcullis_lock.over(redis.RedisCluster(host="127.0.0.1", port=cluster.ports[cluster.leader()])))
    return ways


def test_64_threads_go_on_when_the_leader_is_killed(cluster, spawn):
    ways = connections(cluster)
    kept = [ways[0].lock("kept", lease=300).acquire(), ways[1].lock("session", session=True, grace=PATIENCE).acquire()]

    def meanwhile(resource):
        visited(resource, 100)
        cluster.kill_leader()

    # No wait and no lease ends: the workers go on only if each finds the next leader.
    run_threads(ways, "a", 8, math.inf, spawn, meanwhile=meanwhile)
    assert all(grant.check() and grant.is_held for grant in kept)
    for grant in kept:
        grant.release()
    assert [locks.info(name) for locks in ways for name in ("a", "kept", "session")] == [None] * 9
    for locks in ways:
        locks.close()


async def test_64_tasks_go_on_when_the_leader_is_killed(cluster):
    ways = [await portcullis_lock.aio.connect(cluster.url()), await portcullis_lock.aio.connect(cluster.sentinel_url())]

    def meanwhile(resource):
        visited(resource, 100)
        cluster.kill_leader()

    await run_tasks(ways, "a", 6, math.inf, meanwhile=meanwhile)
    assert await ways[0].info("a") is None
    for locks in ways:
        await locks.close()


def hand_over(cluster):
    """As when nodes are restarted one by one. The leader closes its connections."""
    leader = cluster.leader()
    with redis.Redis(port=cluster.ports[leader]) as client:
        client.execute_command("NODE", "HANDOVER")
    assert cluster.leader() != leader


def lose_the_majority(cluster):
    """The leader ends all waits with UNBLOCKED, and refuses everything with READONLY or CLUSTERDOWN. Then a node leads again."""
    leader = cluster.leader()
    others = [process.pid for number, process in enumerate(cluster.processes) if number != leader]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    with redis.Redis(port=cluster.ports[leader]) as client:
        until(lambda: client.execute_command("ROLE")[0] != b"master", PATIENCE)
    for pid in others:
        os.kill(pid, signal.SIGCONT)
    cluster.leader()


@pytest.mark.parametrize("change", [hand_over, lose_the_majority])
def test_a_change_of_the_leader_disturbs_neither_holders_nor_waiters(cluster, change, spawn):
    with portcullis_lock.connect(cluster.url()) as locks:
        kept = locks.lock("kept", lease=300).acquire()
        waiting = [spawn(locks.lock("kept", wait=math.inf).acquire), spawn(aio_waiter(cluster.url()))]
        until(lambda: len(locks.info("kept").waiters) == 2, PATIENCE)
        change(cluster)
        until(lambda: len(locks.info("kept").waiters) == 2, PATIENCE)
        assert kept.check() and kept.renew() > 250
        kept.release()
        waiting[0].result(PATIENCE).release()
        assert waiting[1].result(PATIENCE) == "granted" and locks.info("kept") is None


@pytest.mark.parametrize("cluster", ["plain"], indirect=True)
def test_a_leader_that_stands_still_is_left_by_those_who_wait(cluster, spawn):
    """Its connections stay open and say nothing."""
    with portcullis_lock.connect(cluster.url(), timeout=0.5) as locks:
        kept = locks.lock("kept", lease=300).acquire()
        # The next leader has them in any order.
        waiting = [spawn(lambda wait=wait: locks.lock("kept", wait=wait).acquire().release() or "granted") for wait in (math.inf, PATIENCE)]
        waiting.append(spawn(aio_waiter(cluster.url())))
        until(lambda: len(locks.info("kept").waiters) == 3, PATIENCE)
        stopped = cluster.processes[cluster.leader()]
        os.kill(stopped.pid, signal.SIGSTOP)
        until(lambda: len(locks.info("kept").waiters) == 3, PATIENCE)
        kept.release()
        assert [thread.result(PATIENCE) for thread in waiting] == ["granted"] * 3
        os.kill(stopped.pid, signal.SIGCONT)
        assert locks.info("kept") is None


def aio_waiter(url):
    async def wait():
        async with portcullis_lock.aio.connect(url, timeout=0.5) as locks, locks.lock("kept", wait=math.inf):
            return "granted"

    return lambda: asyncio.run(wait())


def test_without_a_leader_the_error_names_the_nodes(portcullis_proc):
    ports = nodes.free_ports(6)
    with tempfile.TemporaryDirectory() as directory, Cluster(portcullis_proc.program, directory, ports) as cluster:
        cluster.leader()
        leader = cluster.leader()
        for number, process in enumerate(cluster.processes):
            if number != leader:
                process.kill()
        with redis.Redis(port=cluster.ports[leader]) as client:
            until(lambda: client.execute_command("ROLE")[0] != b"master", PATIENCE)
        with pytest.raises(NoLeaderError, match="no node leads: .*cannot be reached.*cluster status"):
            portcullis_lock.connect(cluster.url(), retry_for=0.2, timeout=0.5).lock("a").acquire()
    assert threading.active_count() < 50
