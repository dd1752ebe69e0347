#!/usr/bin/env python3
"""Drives real client libraries, each doing its real job with concurrent workers, against Portcullis and against redis-server.

    python3 tests/clients/run.py                      everything, against both
    python3 tests/clients/run.py --only node --against portcullis

Clients come from their registries, at the versions pinned beside this file, into a cache (--cache, by default
~/.cache/portcullis-clients). Every suite runs in RESP2 and in RESP3. What cannot run here is listed as skipped; with --strict that is a
failure too. Against redis-server the suites prove themselves: what fails there is the suite's fault.
"""

import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import nodes

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SERVERS = 3  # RedLock wants several
AT_ONCE = 2  # suites, which wait most of the time
STARTS = threading.Lock()

# Family, suite, what it drives. A suite is a program that prints `ok …`, `not ok …: why` and `skip …: why`.
SUITES = [
    ("python", "redis_py", "redis-py"),
    ("python", "redis_py_asyncio", "redis-py, asyncio"),
    ("python", "redis_py_test_mode", "redis-py, test mode"),
    ("python", "python_redis_lock", "python-redis-lock"),
    ("python", "pottery_redlock", "pottery"),
    ("python", "limits_rates", "limits"),
    ("python", "rq_jobs", "rq"),
    ("python", "huey_jobs", "huey"),
    ("python", "redis_tools", "redis-cli, redis-benchmark"),
    ("python", "redis_py_cluster", "redis-py RedisCluster"),
    ("python", "redis_py_cluster_asyncio", "redis-py RedisCluster, asyncio"),
    ("node", "ioredis", "ioredis"),
    ("node", "ioredis-test-mode", "ioredis, test mode"),
    ("node", "node-redis", "node-redis"),
    ("node", "ioredis-cluster", "ioredis Cluster"),
    ("node", "node-redis-cluster", "node-redis createCluster"),
    ("node", "redlock", "redlock"),
    ("node", "redis-semaphore", "redis-semaphore"),
    ("node", "rate-limiter-flexible", "rate-limiter-flexible"),
    ("node", "bottleneck", "bottleneck"),
    ("node", "bullmq", "bullmq"),
    ("rust", "redis_rs", "redis (Rust)"),
    ("rust", "fred", "fred (Rust)"),
    ("rust", "rslock", "rslock (Rust)"),
    ("c", "hiredis", "hiredis (C)"),
]

# The same for suites that work on three nodes, whose leader is killed meanwhile.
FAILOVER_SUITES = [
    ("python", "redis_py_nodes", "redis-py"),
    ("node", "ioredis-nodes", "ioredis"),
    ("node", "node-redis-nodes", "node-redis"),
    ("rust", "redis_rs_nodes", "redis (Rust)"),
    ("python", "redis_cli_nodes", "redis-cli"),
]


class Unavailable(Exception):
    """A family cannot run here, and why."""


def install(directory, stamp_of, make):
    """Makes a directory once for each content of the files that pin its versions."""
    pinned = hashlib.sha256(b"".join(path.read_bytes() for path in stamp_of)).hexdigest()[:16]
    target = directory.with_name(f"{directory.name}-{pinned}")
    done = target / ".complete"
    if not done.exists():
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        make(target)
        done.touch()
    return target


def quiet(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise Unavailable(f"`{' '.join(map(str, command))}` failed:\n{done.stdout[-3000:]}")


def need(program):
    found = shutil.which(program)
    if found is None:
        raise Unavailable(f"{program} is not installed")
    return found


def python(cache):
    requirements = HERE / "python" / "requirements.txt"

    def make(target):
        quiet(sys.executable, "-m", "venv", target / "venv")
        quiet(target / "venv/bin/pip", "install", "-q", "--disable-pip-version-check", "-r", requirements)

    interpreter = install(cache / "python", [requirements], make) / "venv/bin/python"
    return lambda suite: [interpreter, "-u", "-B", HERE / "python" / f"{suite}.py"]


def node(cache):
    need("node"), need("npm")
    pinned = [HERE / "node" / name for name in ("package.json", "package-lock.json")]

    def make(target):
        for path in pinned:
            shutil.copy(path, target)
        # Not `npm ci`: it wants every platform's optional packages in the lock file, and not every registry has them.
        quiet("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional", cwd=target)

    modules = install(cache / "node", pinned, make)

    def command(suite):
        # Imports are looked up from where the program lies.
        for path in (HERE / "node").glob("*.mjs"):
            shutil.copy(path, modules)
        return ["node", modules / f"{suite}.mjs"]

    return command


def rust(cache):
    need("cargo")
    target = cache / "rust"
    environment = os.environ | {"CARGO_TARGET_DIR": str(target)}
    quiet("cargo", "build", "--locked", "--quiet", cwd=HERE / "rust", env=environment)
    return lambda suite: [target / "debug" / suite]


def c(cache):
    need("cc")
    cache.mkdir(parents=True, exist_ok=True)
    program = cache / "hiredis"
    quiet("cc", "-O1", "-Wall", "-Werror", "-o", program, HERE / "c/hiredis.c", "-lhiredis", "-lpthread")
    return lambda suite: [program]


FAMILIES = {"python": python, "node": node, "rust": rust, "c": c}
# Suites whose server is the one node of a cluster, which has all slots.
IN_CLUSTER = {"redis_py_cluster", "redis_py_cluster_asyncio", "ioredis-cluster", "node-redis-cluster"}
# Suites that move the server's clock, and are an application's own tests: redis-server has nothing of the kind.
IN_TEST_MODE = {"redis_py_test_mode", "ioredis-test-mode"}
# Where a client has one protocol only, and why.
ONE_PROTOCOL = {"hiredis": "Debian's hiredis speaks RESP2 only"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One server on a free port of the loopback interface; ends with the `with` block."""

    def __init__(self, program, directory, in_cluster=False, in_test_mode=False):
        self.port = free_port()
        settings = ["--port", str(self.port), "--bind", "127.0.0.1"]
        if in_cluster:
            settings += ["--cluster-enabled", "yes"]
        if in_cluster and program == "redis":
            # The port of its bus would be 10,000 above, and need not be free.
            settings += ["--cluster-port", str(free_port())]
            # Alone it never learns its address, and ioredis passes over nodes without one.
            settings += ["--cluster-announce-ip", "127.0.0.1"]
        if in_test_mode:
            settings += ["--test-mode"]
        if program == "portcullis":
            command = [binary(), "serve", *settings]
        else:
            command = ["redis-server", *settings, "--save", "", "--appendonly", "no", "--dir", directory]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                    probe.sendall(b"PING\r\n")
                    if probe.recv(7) == b"+PONG\r\n":
                        break
            except OSError:
                pass
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.end()
                raise SystemExit(f"{program} does not start")
            time.sleep(0.02)
        if in_cluster and program == "redis":
            self.take_all_slots(deadline)

    def take_all_slots(self, deadline):
        """Makes a cluster of one node of a redis-server, which begins without slots."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            answers = connection.makefile("rb")
            connection.sendall(b"CLUSTER ADDSLOTSRANGE 0 16383\r\n")
            taken = answers.readline() == b"+OK\r\n"
            while taken and time.monotonic() < deadline:
                connection.sendall(b"CLUSTER INFO\r\n")
                if b"cluster_state:ok" in answers.read(int(answers.readline()[1:]) + 2):
                    return
                time.sleep(0.02)
        self.end()
        raise SystemExit("redis-server does not become a cluster")

    def end(self):
        self.process.kill()
        self.process.wait()


def binary():
    if "PORTCULLIS" in os.environ:
        return os.environ["PORTCULLIS"]
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "debug" / "portcullis"


def run_failover(commands, chosen):
    """Kills the leaders under all suites at once. Returns which clients did not go on."""
    rows = {suite: client for _, suite, client in chosen}
    problems = []
    start = time.monotonic()
    for suite, passed, failed, said in nodes.run(binary(), commands):
        print(f"{rows[suite]:<32}{'3 nodes':<12}{'':<6}{len(passed):>6}{len(failed):>8}{0:>9}{time.monotonic() - start:>9.1f}", flush=True)
        if failed:
            problems.append(f"{rows[suite]}, whose leader was killed")
            print("".join(f"    {line}\n" for line in passed + failed + said.splitlines()[-40:]), end="", flush=True)
    return problems


def run_suite(command, servers, protocol):
    """The lines of one suite, sorted into passed, skipped and failed, and what it said besides."""
    environment = os.environ | {
        "SERVER_HOST": "127.0.0.1",
        "SERVER_PORT": str(servers[0].port),
        "SERVER_PORTS": ",".join(str(server.port) for server in servers),
        "PROTOCOL": str(protocol),
        # For suites that start servers of their own.
        "PORTCULLIS": str(pathlib.Path(binary()).resolve()),
    }
    with tempfile.TemporaryFile("w+") as errors:
        try:
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=300)
            output, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as late:
            output, code = (late.stdout or b"").decode(), "time-out"
        errors.seek(0)
        said = errors.read()
    lines = output.splitlines()
    passed = [line for line in lines if line.startswith("ok ")]
    skipped = [line for line in lines if line.startswith("skip ")]
    failed = [line for line in lines if line.startswith("not ok ")]
    if not failed and (code != 0 or not passed):
        failed.append(f"not ok the whole suite: ended with {code}")
    return passed, skipped, failed, said


def play(client, suite, program, protocol, command):
    """Runs one suite against servers of its own. Returns what to print, and the problem if there is one."""
    row = f"{client:<32}{program:<12}{protocol:<6}"
    if protocol == 3 and suite in ONE_PROTOCOL:
        return f"{row}       –  {ONE_PROTOCOL[suite]}", None
    in_cluster, in_test_mode = suite in IN_CLUSTER, suite in IN_TEST_MODE
    if in_test_mode and program == "redis":
        return f"{row}       –  redis-server has no test mode", None
    with tempfile.TemporaryDirectory() as directory:
        servers = []
        try:
            # One after the other: another thread's server must not get the port that was just found free.
            with STARTS:
                for _ in range(1 if in_cluster else SERVERS):
                    servers.append(Server(program, directory, in_cluster, in_test_mode))
            start = time.monotonic()
            passed, skipped, failed, said = run_suite(command, servers, protocol)
        finally:
            dead = [server for server in servers if server.process.poll() is not None]
            for server in servers:
                server.end()
    if dead:
        failed.append("not ok the server: it ended while the suite ran")
    seconds = time.monotonic() - start
    text = [f"{row}{len(passed):>6}{len(failed):>8}{len(skipped):>9}{seconds:>9.1f}", *(f"    {line}" for line in skipped)]
    if failed:
        text += [f"    {line}" for line in failed + said.splitlines()[-40:]]
    return "\n".join(text), f"{client}, RESP{protocol}, against {program}" if failed else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=["portcullis", "redis", "both"], default="both")
    parser.add_argument("--only", action="append", help="a family or a suite; may be given several times")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/portcullis-clients")
    parser.add_argument("--strict", action="store_true", help="what cannot run here is a failure")
    arguments = parser.parse_args()
    if "PORTCULLIS" not in os.environ:
        quiet("cargo", "build", "--locked", "--quiet", cwd=ROOT)

    def is_chosen(row):
        return not arguments.only or row[0] in arguments.only or row[1] in arguments.only

    chosen, failover = ([row for row in rows if is_chosen(row)] for rows in (SUITES, FAILOVER_SUITES))
    if not chosen and not failover:
        raise SystemExit(f"no suite is called {' or '.join(arguments.only)}")
    programs = ["portcullis", "redis"] if arguments.against == "both" else [arguments.against]
    problems, missing = [], []
    if "redis" in programs and shutil.which("redis-server") is None:
        missing.append("all suites against redis-server: it is not installed")
        programs.remove("redis")

    commands = {}
    for family in dict.fromkeys(row[0] for row in [*chosen, *failover]):
        try:
            commands[family] = FAMILIES[family](arguments.cache)
        except Unavailable as why:
            missing.append(f"the {family} suites: {why}")

    print(f"{'client':<32}{'server':<12}{'RESP':<6}{'passed':>6}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    runs = [
        (client, suite, program, protocol, commands[family](suite))
        for family, suite, client in chosen
        if family in commands
        for program in programs
        for protocol in (2, 3)
    ]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for said, problem in pool.map(lambda run: play(*run), runs):
            print(said, flush=True)
            if problem:
                problems.append(problem)

    failover = [row for row in failover if row[0] in commands]
    if failover and "portcullis" in programs:
        problems += run_failover({suite: commands[family](suite) for family, suite, _ in failover}, failover)

    for what in missing:
        print(f"SKIPPED: {what}")
    for what in problems:
        print(f"FAILED: {what}")
    if problems or (missing and arguments.strict):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
