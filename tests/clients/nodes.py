"""Starts replicated nodes for client libraries, and kills their leaders while the libraries work.

All suites work at once, on two clusters of three nodes: one for clients with Sentinel support, and one with `cluster-enabled`. When each
has said `ready`, both leaders are killed, and each is told `killed`. A suite goes on, and says which of its clients have succeeded.
"""

import os
import pathlib
import random
import socket
import subprocess
import tempfile
import threading
import time

NODES = 3
# Seconds for everything.
PATIENCE_S = 60


def free_ports(count):
    """Free ports, below those that the system gives to outgoing connections: one of these could take a port before its node does."""
    ports = set()
    while len(ports) < count:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                ports.add(port)
            except OSError:
                pass
    return list(ports)


class Nodes:
    """Three nodes; they end with the `with` block."""

    def __init__(self, program, directory, ports, *settings):
        self.ports, self.directory = ports[:NODES], pathlib.Path(directory)
        peers = ",".join(f"{number}=127.0.0.1:{port}" for number, port in enumerate(ports[NODES:], 1))
        self.processes = []
        for number, port in enumerate(self.ports, 1):
            folder = pathlib.Path(directory) / str(number)
            folder.mkdir()
            command = [program, "serve", "--node-id", str(number), "--peers", peers, "--port", str(port), "--dir", folder, *settings]
            with open(pathlib.Path(directory) / f"{number}.log", "wb") as log:
                self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()

    def leader(self):
        """The number of the node that leads, counted from 0."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for number, port in enumerate(self.ports):
                try:
                    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                        connection.sendall(b"ROLE\r\n")
                        if b"master" in connection.recv(100):
                            return number
                except OSError:
                    pass
            time.sleep(0.02)
        raise SystemExit("no node leads")

    def wait_for_votes(self):
        """Waits until all nodes vote. A new cluster with two that do cannot lose one of them."""
        deadline = time.monotonic() + PATIENCE_S
        while self.logs().count("this node votes") < NODES:
            if time.monotonic() > deadline:
                raise SystemExit("a node does not vote")
            time.sleep(0.02)

    def kill_leader(self):
        self.processes[self.leader()].kill()

    def logs(self):
        """What the nodes have said."""
        return "\n".join(f"node {number}:\n{(self.directory / f'{number}.log').read_text()}" for number in range(1, NODES + 1))


class Suite:
    """A running suite and what it says."""

    def __init__(self, command, environment):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        self.lines = []
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            if line == "ready\n":
                self.ready.set()
            else:
                self.lines.append(line.rstrip("\n"))
        self.ready.set()

    def tell(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # It has ended, and has failed.

    def finish(self, deadline):
        """The lines of the clients that succeeded and of those that failed, and what it said besides."""
        try:
            code = self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "time-out"
        self.reader.join(5)
        self.errors.seek(0)
        passed = [line for line in self.lines if line.startswith("ok ")]
        failed = [line for line in self.lines if line.startswith("not ok ")]
        if not failed and (code != 0 or not passed):
            failed.append(f"not ok the whole suite: ended with {code}")
        return passed, failed, self.errors.read()


def run(program, commands):
    """Runs the suites, given as commands by their names. Yields name, passed, failed, and what it said."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        ports = free_ports(4 * NODES)
        half = 2 * NODES
        with (
            Nodes(program, first, ports[:half]) as plain,
            Nodes(program, second, ports[half:], "--cluster-enabled", "yes") as cluster,
        ):
            plain.leader(), cluster.leader()
            plain.wait_for_votes(), cluster.wait_for_votes()
            environment = os.environ | {
                "SENTINEL_PORTS": ",".join(map(str, plain.ports)),
                "CLUSTER_PORTS": ",".join(map(str, cluster.ports)),
            }
            deadline = time.monotonic() + PATIENCE_S
            suites = {name: Suite(command, environment) for name, command in commands.items()}
            for suite in suites.values():
                suite.ready.wait(max(0.1, deadline - time.monotonic()))
            plain.kill_leader(), cluster.kill_leader()
            for suite in suites.values():
                suite.tell("killed")
            for name, suite in suites.items():
                passed, failed, said = suite.finish(deadline)
                yield name, passed, failed, said + (plain.logs() + cluster.logs() if failed else "")
