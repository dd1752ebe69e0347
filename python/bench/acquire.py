#!/usr/bin/env python3
"""What acquire and release cost, beside the two raw commands by redis-py, and what renewing costs.

    python3 python/bench/acquire.py --program target/release/portcullis

Short blocks of both take turns, so that both meet the same neighbours. Figures are medians of the blocks: microseconds a pair, of wall time and of this
process's CPU time. The last column is the median of ours divided by raw, each of the same turn.
"""

import argparse
import asyncio
import itertools
import statistics
import threading
import time

import redis.asyncio

from portcullis_lock.testing import Portcullis

BLOCKS, PAIRS = 150, 80
NUMBERS = itertools.count()


def measure(work):
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - wall) / PAIRS * 1e6, (time.process_time() - cpu) / PAIRS * 1e6


def compare(name, raw, ours):
    figures = {"raw": [], "ours": []}
    for block in range(BLOCKS + 2):
        for which, work in (("raw", raw), ("ours", ours)) if block % 2 else (("ours", ours), ("raw", raw)):
            figure = measure(work)
            if block >= 2:
                figures[which].append(figure)
    for kind, index in (("wall", 0), ("CPU", 1)):
        one, two = ([figure[index] for figure in figures[which]] for which in ("raw", "ours"))
        ratio = statistics.median(ours / raw for raw, ours in zip(one, two))
        print(f"{name:<24}{kind:<6}{statistics.median(one):>10.0f}{statistics.median(two):>10.0f}{ratio:>8.2f}")


def blocking(server):
    client, locks = server.client(), server.locks()

    def raw():
        for _ in range(PAIRS):
            owner = f"owner:{next(NUMBERS)}"
            token = client.execute_command("LOCK.ACQUIRE", "a", owner, 30_000, "REQUEST", owner)
            client.execute_command("LOCK.RELEASE", "a", owner, "TOKEN", token, "REQUEST", owner)

    def ours():
        for _ in range(PAIRS):
            with locks.lock("a"):
                pass

    compare("blocking", raw, ours)
    locks.close()


def on_asyncio(server):
    loop = asyncio.new_event_loop()
    client = redis.asyncio.Redis(host=server.host, port=server.port, decode_responses=True)
    locks = loop.run_until_complete(server.async_locks().__aenter__())

    async def raw():
        for _ in range(PAIRS):
            owner = f"owner:{next(NUMBERS)}"
            token = await client.execute_command("LOCK.ACQUIRE", "a", owner, 30_000, "REQUEST", owner)
            await client.execute_command("LOCK.RELEASE", "a", owner, "TOKEN", token, "REQUEST", owner)

    async def ours():
        for _ in range(PAIRS):
            async with locks.lock("a"):
                pass

    compare("asyncio", lambda: loop.run_until_complete(raw()), lambda: loop.run_until_complete(ours()))
    loop.run_until_complete(locks.close())
    loop.run_until_complete(client.aclose())
    loop.close()


def renewing(server):
    locks, before = server.locks(), threading.active_count()
    grants = [locks.lock(f"n:{number}", lease=3).acquire() for number in range(1000)]
    threads, cpu, wall = threading.active_count() - before, time.process_time(), time.perf_counter()
    time.sleep(5)
    share = (time.process_time() - cpu) / (time.perf_counter() - wall)
    assert all(grant.is_held for grant in grants)
    print(f"1,000 locks with a lease of 3 s: {threads} thread, {share:.1%} of a core")
    locks.close()


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--program")
with Portcullis(program=parser.parse_args().program) as server:
    print(f"redis-py {redis.__version__}\n{'acquire + release':<24}{'':<6}{'raw µs':>10}{'ours µs':>10}{'ratio':>8}")
    blocking(server)
    on_asyncio(server)
    renewing(server)
