#!/usr/bin/env python3
"""Three nodes, clients that wait at the leader, and a leader without a majority: how soon is each client answered or closed?

    python3 tests/trials/waiters.py --program target/release/portcullis
    python3 tests/trials/waiters.py --program … --trials 200

Faults: `cut` cuts the leader off from the other nodes while its clients reach it; `stop` stops it (SIGSTOP), and it goes on when another node
leads. A trial is one fault, with one client for each way to wait. During `stop`, one more client sends the leader what it must not answer as
before: LOCK.RENEW and LOCK.CHECK of a lock that it holds. The exit code is 1 if a client waits longer than --within, or if the old leader
answers as if it still led.
"""

import argparse
import asyncio
import collections
import pathlib
import signal
import tempfile

from sessions import Cluster, Connection, now

WAITS = {
    "LOCK.ACQUIRE": ("LOCK.ACQUIRE", "held", "waiter", 30_000, "WAIT", 600_000),
    "LOCK.ACQUIRE SESSION": ("LOCK.ACQUIRE", "held", "bound", 30_000, "WAIT", 600_000, "SESSION"),
    "SEM.ACQUIRE": ("SEM.ACQUIRE", "taken", "waiter", 30_000, "LIMIT", 1, "WAIT", 600_000),
    "LATCH.AWAIT": ("LATCH.AWAIT", "latch", "WAIT", 600_000),
    "BLPOP": ("BLPOP", "no-list", 0),
    "BLMOVE": ("BLMOVE", "no-list", "other", "LEFT", "RIGHT", 0),
    "BZPOPMIN": ("BZPOPMIN", "no-set", 0),
    "XREAD": ("XREAD", "BLOCK", 0, "STREAMS", "no-stream", "$"),
    "WAIT": ("WAIT", 9, 0),
}
HOLD = ("LOCK.ACQUIRE", "held", "holder", 600_000), ("SEM.ACQUIRE", "taken", "holder", 600_000, "LIMIT", 1), ("LATCH.SET", "latch", 3)
# Time after which the others have another leader.
STOPPED = 2.0
PATIENCE = 15.0


async def end_of(connection, way, ends):
    """Records when a waiter has a reply, or its connection has closed, and which."""
    try:
        said = str(await connection.receive())
    except (OSError, asyncio.IncompleteReadError):
        said = "closed"
    ends[way] = (now(), said)


async def trial(cluster, fault):
    """One fault. Returns how long each waited from the fault on, and what the old leader answered wrongly."""
    leader = await cluster.ready()
    port = cluster.clients[leader]
    holder = await Connection.open(port)
    for words in HOLD:
        assert not isinstance(reply := await holder.ask(*words), RuntimeError), reply
    waiters = {way: await Connection.open(port) for way in WAITS}
    # WAIT waits for followers that the server does not have.
    await waiters["WAIT"].ask("SET", "written", "1")
    for way, words in WAITS.items():
        waiters[way].send(*words)
    await asyncio.sleep(0.3)
    ends, wrong = {}, []
    reading = [asyncio.ensure_future(end_of(connection, way, ends)) for way, connection in waiters.items()]
    await asyncio.sleep(0)
    assert not ends, ends
    begun = now()
    if fault == "cut":
        cluster.cut = leader
        await asyncio.wait(reading, timeout=PATIENCE)
        cluster.cut = None
    else:
        process = cluster.processes[leader]
        process.send_signal(signal.SIGSTOP)
        holder.send("LOCK.RENEW", "held", "holder", 600_000)
        holder.send("LOCK.CHECK", "held", "1")
        await asyncio.sleep(STOPPED)
        begun = now()
        process.send_signal(signal.SIGCONT)
        for _ in range(2):
            try:
                reply = await asyncio.wait_for(holder.receive(), PATIENCE)
            except (OSError, asyncio.IncompleteReadError):
                break
            if not isinstance(reply, RuntimeError):
                wrong.append(str(reply))
        await asyncio.wait(reading, timeout=PATIENCE)
    for task in reading:
        task.cancel()
    for connection in (holder, *waiters.values()):
        connection.close()
    new = await Connection.open(cluster.clients[await cluster.leader()])
    for words in (("LOCK.RELEASE", "held", "holder"), ("SEM.RELEASE", "taken", "holder"), ("DEL", "latch")):
        await new.ask(*words)
    new.close()
    for at, said in ends.values():
        if said != "closed" and not said.startswith(("UNBLOCKED", "READONLY", "MOVED")):
            wrong.append(said)
    return {way: ends[way][0] - begun if way in ends else PATIENCE for way in WAITS}, wrong


async def run(arguments):
    times, wrong = collections.defaultdict(list), collections.Counter()
    with tempfile.TemporaryDirectory(prefix="portcullis-waiters-") as folder:
        async with Cluster(str(arguments.program.resolve()), folder) as cluster:
            print(f"{'fault':<6}{'wait':<22}{'trials':>7}{'median ms':>11}{'worst ms':>10}{'late':>6}", flush=True)
            failed = False
            for fault in arguments.faults:
                for _ in range(arguments.trials):
                    took, answers = await trial(cluster, fault)
                    for way, time_s in took.items():
                        times[fault, way].append(time_s)
                    wrong.update(answers)
                for way in WAITS:
                    all_s = sorted(times[fault, way])
                    late = sum(time_s > arguments.within for time_s in all_s)
                    failed |= late > 0
                    print(f"{fault:<6}{way:<22}{len(all_s):>7}{all_s[len(all_s) // 2] * 1000:>11.0f}{all_s[-1] * 1000:>10.0f}{late:>6}", flush=True)
    for said, times_said in wrong.items():
        print(f"answered as if it led, {times_said} times: {said}")
    return failed or bool(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--trials", type=int, default=10, help="faults of each kind")
    parser.add_argument("--within", type=float, default=1.0, help="seconds")
    parser.add_argument("--faults", default="cut,stop", type=lambda text: text.split(","))
    raise SystemExit(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
