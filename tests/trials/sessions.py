#!/usr/bin/env python3
"""Three nodes, holders by SESSION, and a fault: does anybody else hold a lock while its holder believes to hold it?

    python3 tests/trials/sessions.py --program target/release/portcullis
    python3 tests/trials/sessions.py --program … --trials 200 --python VENV/bin/python --node-modules DIR --rust target/debug/examples/trial_holder

Faults: `cut` cuts the leader off from the other nodes while all clients reach it; `stop` stops it (SIGSTOP) for 8 s; `kill` kills it, and the
holders beside it, so that nobody sees their connections end; `client` kills the holders alone, whose end the leader sees. Holders: raw
requests without a library (`raw`), Python (`python`, `asyncio`), JavaScript (`javascript`) and Rust (`rust`), those whose options are given; each with sessions that have a name and a
grace, and, where there are such, without. A second client waits for each lock from the start, at whichever node leads. A trial is one lock;
--batch of them share a fault. Verdicts: *two* holders, when the second was granted before the first was told of its loss; *early*, when the
second was granted before the lease's end that the server showed before the fault, although no connection was seen to end and nobody
released; *kept*, when the holder came back and held on. The exit code is 1 if there were two, or an early one.
"""

import argparse
import asyncio
import collections
import itertools
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "clients"))
import nodes

ROOT = HERE.parent.parent
NODES = nodes.NODES
GRACE = 2.0
# How long a leader is stopped, and how much longer than the lease one is cut off.
STOPPED, CUT_BEYOND = 8.0, 4.0
# What a reply may be late on a busy machine: a grant is seen when its reply is.
SLACK = 0.05
PATIENCE = 60.0
now = time.monotonic


class Connection:
    """A connection by which requests are sent one after the other."""

    @classmethod
    async def open(cls, port, timeout=1.0):
        self = cls()
        self.port = port
        self.reader, self.writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), timeout)
        return self

    def send(self, *words):
        encoded = [str(word).encode() for word in words]
        self.writer.write(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded))

    async def receive(self):
        line = await self.reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("closed")
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"$":
            return None if rest == "-1" else (await self.reader.readexactly(int(rest) + 2))[:-2].decode()
        if kind == b"*":
            return None if rest == "-1" else [await self.receive() for _ in range(int(rest))]
        if kind == b"-":
            return RuntimeError(rest)
        return int(rest) if kind == b":" else rest

    async def ask(self, *words, timeout=2.0):
        self.send(*words)
        return await asyncio.wait_for(self.receive(), timeout)

    def close(self):
        self.writer.transport.abort()


class Cluster:
    """Three nodes as processes, which reach each other through proxies of this process."""

    def __init__(self, program, folder):
        self.program, self.folder = program, pathlib.Path(folder)
        ports = nodes.free_ports(3 * NODES)
        self.clients, self.listens, self.peers = ports[:NODES], ports[NODES : 2 * NODES], ports[2 * NODES :]
        self.processes = [None] * NODES
        self.cut = None
        """The node that is cut off from the others."""
        self.servers = []

    @property
    def url(self):
        return "redis://" + ",".join(f"127.0.0.1:{port}" for port in self.clients)

    async def __aenter__(self):
        for node in range(NODES):
            (self.folder / str(node)).mkdir()
            proxy = asyncio.start_server(lambda reader, writer, node=node: self.carry(reader, writer, node), "127.0.0.1", self.peers[node])
            self.servers.append(await proxy)
        for node in range(NODES):
            self.start(node)
        await self.ready()
        return self

    async def __aexit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        for server in self.servers:
            server.close()

    def start(self, node):
        peers = ",".join(f"{number + 1}=127.0.0.1:{port}" for number, port in enumerate(self.peers))
        command = [self.program, "serve", "--node-id", str(node + 1), "--peers", peers, "--peer-listen", f"127.0.0.1:{self.listens[node]}"]
        # A node ends with this process, however that ends.
        command += ["--port", str(self.clients[node]), "--dir", str(self.folder / str(node)), "--end-with-stdin"]
        with open(self.folder / f"{node}.log", "ab") as log:
            self.processes[node] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)

    async def leader(self):
        """The number of the node that leads, and can commit."""
        end = now() + PATIENCE
        while now() < end:
            for node, port in enumerate(self.clients):
                try:
                    connection = await Connection.open(port)
                    try:
                        role = await connection.ask("ROLE")
                        if role[0] == "master" and await connection.ask("SET", "trial", "1") == "OK":
                            return node
                    finally:
                        connection.close()
                except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, TypeError):
                    pass
            await asyncio.sleep(0.02)
        raise SystemExit("no node leads")

    async def ready(self):
        """Waits until one leads and all three take part."""
        end = now() + PATIENCE
        while now() < end:
            leader = await self.leader()
            connection = await Connection.open(self.clients[leader])
            followers = (await connection.ask("ROLE"))[2]
            connection.close()
            if len(followers) == NODES - 1 and "".join((self.folder / f"{n}.log").read_text() for n in range(NODES)).count("this node votes") >= NODES:
                return leader
            await asyncio.sleep(0.1)
        raise SystemExit("not all nodes take part")

    # The proxies

    def sender(self, port):
        """The node whose process has this port: the one that has opened the connection."""
        sockets = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
        inodes = {fields[9] for fields in sockets if int(fields[1].rpartition(":")[2], 16) == port}
        for node, process in enumerate(self.processes):
            try:
                for each in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
                    if os.readlink(each).removeprefix("socket:[").removesuffix("]") in inodes:
                        return node
            except OSError:
                pass
        return None

    def is_cut(self, a, b):
        return self.cut is not None and a != b and self.cut in (a, b)

    async def carry(self, reader, writer, to):
        came_from = self.sender(writer.get_extra_info("peername")[1])
        try:
            while self.is_cut(came_from, to):
                await asyncio.sleep(0.005)
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.listens[to])
        except OSError:
            writer.transport.abort()
            return
        try:
            await asyncio.gather(self.pump(reader, far_writer, came_from, to), self.pump(far_reader, writer, came_from, to))
        except asyncio.CancelledError:
            # The trials are over.
            pass

    async def pump(self, reader, writer, came_from, to):
        try:
            while data := await reader.read(1 << 16):
                while self.is_cut(came_from, to):
                    await asyncio.sleep(0.005)
                writer.write(data)
        except OSError:
            pass
        while self.is_cut(came_from, to):
            await asyncio.sleep(0.005)
        writer.transport.abort()


class Raw:
    """Holds locks without a library: each by a connection of its own, renewed at a third of the lease. It counts as no holder when nobody has
    answered for the lease less a twentieth, and, without coming back, when its connection ends."""

    def __init__(self, cluster, prefix, count, lease, grace):
        self.cluster, self.lease, self.grace = cluster, lease, grace
        self.held, self.lost, self.over = {}, {}, {}
        self.names = [f"{prefix}:{number}" for number in range(count)]
        self.connections = {}
        self.is_over = self.is_killed = False

    async def start(self):
        self.leader = await self.cluster.leader()
        await asyncio.gather(*(self.acquire(name) for name in self.names))
        self.tasks = [asyncio.ensure_future(self.hold(name)) for name in self.names]

    async def acquire(self, name):
        connection = self.connections[name] = await Connection.open(self.cluster.clients[self.leader], 5.0)
        if self.grace:
            assert isinstance(await connection.ask("LOCK.SESSION", f"s:{name}", "GRACE", round(self.grace * 1000), timeout=10), int)
        sent = now()
        token = await connection.ask("LOCK.ACQUIRE", name, f"raw:{name}", round(self.lease * 1000), "WAIT", 30_000, "SESSION", timeout=40)
        assert isinstance(token, int), token
        self.held[name] = now()
        connection.until = sent + self.lease * 0.95

    async def hold(self, name):
        connection = self.connections[name]
        try:
            while True:
                await asyncio.sleep(min(self.lease / 3, max(0.0, connection.until - now())) if not connection.reader.at_eof() else 0)
                sent = now()
                left = await connection.ask("LOCK.RENEW", name, f"raw:{name}", round(self.lease * 1000), timeout=max(0.001, connection.until - now()))
                if not isinstance(left, int) or now() >= connection.until:
                    raise ConnectionError(str(left))
                connection.until = sent + left / 1000 * 0.95
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            if not self.is_over and not self.is_killed:
                self.lost[name] = now()

    def kill(self):
        self.is_killed = True
        for name in self.names:
            self.connections[name].close()

    async def stop(self):
        self.is_over = True
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for name in self.names:
            if name not in self.lost and not self.is_killed:
                self.over[name] = now()
            self.connections[name].close()


class Process:
    """Holds locks by a library, in a process of its own."""

    def __init__(self, command, cluster, prefix, count, lease, grace, **options):
        self.command = [*command, cluster.url, prefix, str(count), str(lease), str(grace)]
        self.count, self.options = count, options
        self.held, self.lost, self.over = {}, {}, {}

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(*self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **self.options)
        self.reading = asyncio.ensure_future(self.read())
        end = now() + PATIENCE
        while len(self.held) < self.count:
            if self.reading.done() or now() > end:
                raise SystemExit(f"{' '.join(self.command)} does not hold its locks")
            await asyncio.sleep(0.01)

    async def read(self):
        while line := await self.process.stdout.readline():
            what, name, time_s, *_ = line.decode().split()
            getattr(self, what)[name] = float(time_s)

    def kill(self):
        self.process.kill()

    async def stop(self):
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), PATIENCE)
        except asyncio.TimeoutError:
            self.process.kill()
        await self.reading


async def contend(cluster, name, granted):
    """Waits for a lock at whichever node leads, and records when it is granted."""
    while True:
        connection = None
        try:
            for port in random.sample(cluster.clients, NODES):
                connection = await Connection.open(port)
                role = await connection.ask("ROLE", timeout=0.5)
                if role[0] == "master":
                    token = await connection.ask("LOCK.ACQUIRE", name, "second", 60_000, "WAIT", 3_000, "REQUEST", f"c:{name}", timeout=4)
                    if isinstance(token, int):
                        granted[name] = now()
                        await connection.ask("LOCK.RELEASE", name, "second")
                        return
                connection.close()
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, TypeError):
            pass
        finally:
            if connection is not None:
                connection.close()
        await asyncio.sleep(0.05)


async def ends_of(cluster, names):
    """When the leases of these locks end, as the leader shows them."""
    connection = await Connection.open(cluster.clients[await cluster.leader()])
    ends = {}
    for name in names:
        asked = now()
        info = await connection.ask("LOCK.INFO", name)
        if info is None:
            continue
        fields = dict(zip(info[::2], info[1::2]))
        holder = fields["holders"][0]
        ends[name] = asked + int(dict(zip(holder[::2], holder[1::2]))["lease"]) / 1000
    connection.close()
    return ends


async def trial(cluster, fault, kinds, batch, lease, number):
    """One fault, and `batch` locks of each kind. Returns the counts of each kind."""
    leader = await cluster.ready()
    groups = {kind: make(f"{number}:{kind}", batch) for kind, make in kinds.items()}
    await asyncio.gather(*(group.start() for group in groups.values()))
    names = [name for group in groups.values() for name in group.held]
    granted = {}
    seconds = [asyncio.ensure_future(contend(cluster, name, granted)) for name in names]
    await asyncio.sleep(0.3 + random.random() * lease / 3)
    leader = await cluster.leader()
    ends = await ends_of(cluster, names)
    begun = now()
    process = cluster.processes[leader]
    if fault == "cut":
        cluster.cut = leader
        await asyncio.sleep(lease + CUT_BEYOND)
        cluster.cut = None
    elif fault == "stop":
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(STOPPED)
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(lease)
    else:
        if fault == "kill":
            process.kill()
        for group in groups.values():
            group.kill()
        if fault == "kill":
            process.wait()
        await asyncio.sleep(2.0)
        if fault == "kill":
            cluster.start(leader)
        await asyncio.sleep(lease)
    await asyncio.gather(*(group.stop() for group in groups.values()))
    await asyncio.wait(seconds, timeout=2 * lease + 10)
    for second in seconds:
        second.cancel()
    counts = {}
    for kind, group in groups.items():
        count = counts[kind] = collections.Counter()
        for name in group.held:
            count["trials"] += 1
            at = granted.get(name)
            if at is None:
                count["stuck"] += 1
                continue
            # A holder that is killed works until then.
            until = group.lost.get(name, group.over.get(name, begun))
            count["two"] += at < until - 0.001
            # Somebody who lives may have released it, and a session that is seen to end is over with its grace.
            is_alone = fault == "kill"
            count["early"] += is_alone and at < ends.get(name, begun) - SLACK
            count["kept"] += name in group.over
            count["worst"] = max(count["worst"], until - at) if at < until else count["worst"]
            count["second"] += at - begun
    return counts


async def run(arguments):
    lease = arguments.lease
    with tempfile.TemporaryDirectory(prefix="portcullis-trials-") as folder:
        async with Cluster(str(arguments.program.resolve()), folder) as cluster:

            def process(command, grace, **options):
                return lambda prefix, count: Process(command, cluster, prefix, count, lease, grace, **options)

            kinds = {}
            for grace, session in ((GRACE, "named"), (0.0, "unnamed")):
                if "raw" in arguments.clients:
                    kinds[f"raw,{session}"] = lambda prefix, count, grace=grace: Raw(cluster, prefix, count, lease, grace)
                environment = {**os.environ, "PYTHONPATH": str(ROOT / "python/src")}
                for way, name in (("sync", "python"), ("aio", "asyncio")):
                    # The package's sessions always have a name; a grace of 0 ends them as those without.
                    if arguments.python and name in arguments.clients:
                        kinds[f"{name},{session}"] = process([arguments.python, str(HERE / "holder.py"), way], grace, env=environment)
                if arguments.node_modules and "javascript" in arguments.clients:
                    kinds[f"javascript,{session}"] = process([arguments.node, str(HERE / "holder.mjs")], grace, cwd=arguments.node_modules)
                if arguments.rust and "rust" in arguments.clients:
                    kinds[f"rust,{session}"] = process([arguments.rust], grace)
            totals = collections.defaultdict(collections.Counter)
            numbers = itertools.count()
            print(f"{'fault':<8}{'holder':<22}{'trials':>7}{'two':>6}{'worst s':>9}{'early':>7}{'kept':>6}{'stuck':>7}{'second after s':>16}", flush=True)
            for fault in arguments.faults:
                done = 0
                while done < arguments.trials:
                    batch = min(arguments.batch, arguments.trials - done)
                    for kind, counts in (await trial(cluster, fault, kinds, batch, lease, f"{fault}:{next(numbers)}")).items():
                        total = totals[fault, kind]
                        worst = max(total["worst"], counts.pop("worst", 0))
                        total.update(counts)
                        total["worst"] = worst
                    done += batch
                    print(f"{fault}: {done} of {arguments.trials}", file=sys.stderr, flush=True)
                    if arguments.logs:
                        for node in range(NODES):
                            pathlib.Path(arguments.logs).mkdir(parents=True, exist_ok=True)
                            (pathlib.Path(arguments.logs) / f"{node}.log").write_text((cluster.folder / f"{node}.log").read_text())
                show(fault, totals)
            return totals


def show(fault, totals):
    """Prints the rows of a fault."""
    for (of, kind), total in totals.items():
        if of == fault:
            mean = total["second"] / max(1, total["trials"] - total["stuck"])
            numbers = f"{total['two']:>6}{total['worst']:>9.2f}{total['early']:>7}{total['kept']:>6}{total['stuck']:>7}{mean:>16.1f}"
            print(f"{fault:<8}{kind:<22}{total['trials']:>7}{numbers}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--trials", type=int, default=10, help="locks of each kind and fault")
    parser.add_argument("--batch", type=int, default=50, help="locks of each kind that share a fault")
    parser.add_argument("--lease", type=float, default=10.0, help="seconds")
    parser.add_argument("--faults", default="cut,stop,kill,client", type=lambda text: text.split(","))
    parser.add_argument("--clients", default="raw,python,asyncio,javascript,rust", type=lambda text: text.split(","))
    parser.add_argument("--python", help="an interpreter that has redis-py")
    parser.add_argument("--node", default="node")
    parser.add_argument("--node-modules", help="a folder from which Node.js finds portcullis-lock and ioredis")
    parser.add_argument("--rust", help="the example `trial_holder`, built")
    parser.add_argument("--logs", help="a folder for what the nodes say")
    arguments = parser.parse_args()
    totals = asyncio.run(run(arguments))
    raise SystemExit(1 if any(total["two"] + total["early"] + total["stuck"] for total in totals.values()) else 0)


if __name__ == "__main__":
    main()
