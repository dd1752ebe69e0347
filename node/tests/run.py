#!/usr/bin/env python3
"""Builds the package portcullis-lock, and tests it with the client libraries and test runners that it is for.

    python3 node/tests/run.py --cache DIR --program PATH          everything
    python3 node/tests/run.py --cache DIR --program PATH --only locks
    python3 node/tests/run.py --cache DIR --program PATH --node PATH    under another Node.js

A part of the suites runs under the oldest Node.js that the package supports, too. The packages that it needs come from their registry, at the versions pinned beside this file, into the cache. What cannot run here is
listed as skipped; with --strict that is a failure. The last line is `N passed, N failed`.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parent
ROOT = PACKAGE.parent
sys.path.insert(0, str(ROOT / "tests/clients"))
import nodes  # noqa: E402

# The first major version of Node.js that the newest client libraries and Vitest run under; before, the oldest ones are tested alone.
NEWEST_CLIENTS_NODE = 20
# The first major version whose test runner starts something before all test files.
GLOBAL_SETUP_NODE = 24
# The oldest Node.js, which the pinned packages bring.
OLDEST_NODE = "node_modules/node-18/bin/node"
# Applications' settings for TypeScript, and the compiler for each.
CONFIGS = {
    "tsconfig.json": "typescript",
    "tsconfig.testcontainers.json": "typescript",
    "tsconfig.old.json": "typescript-5.4",
    "tsconfig.bundler.json": "typescript",
}
# Seconds for one suite.
PATIENCE_S = 150
DURABLE = "--appendonly yes --appendfsync always --dir"
# A line of a test runner for one test, which passed or failed: TAP, and Vitest's and Jest's verbose reports.
PASSED = re.compile(r"^\s*(?:ok \d+|✓|√) ")
FAILED = re.compile(r"^\s*(?:not ok \d+|[×✕✗]) ")
# What TAP says of a test that passed.
PASSED_BLOCK = re.compile(r"^\s*# Subtest: .*\n\s*ok \d+ .*\n\s*---\n(?:.*\n)*?\s*\.\.\.\n", re.MULTILINE)


def run(*command, **options):
    """Runs a command; ends with its output if it fails."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise SystemExit(f"`{' '.join(map(str, command))}` failed:\n{done.stdout[-6000:]}")
    return done.stdout


def dependencies(cache):
    """The folder with the pinned packages, installed once for each content of the files that pin them."""
    pinned = [HERE / "package.json", HERE / "package-lock.json"]
    folder = cache / f"node-{hashlib.sha256(b''.join(path.read_bytes() for path in pinned)).hexdigest()[:16]}"
    if not (folder / ".complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path in pinned:
            shutil.copy(path, folder)
        # Not `npm ci`: it wants every platform's optional packages in the lock file, and not every registry has them.
        run("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)
        (folder / ".complete").touch()
    return folder


def build(modules, work):
    """Copies the sources, type-checks them strictly, and builds them. Returns the folder of the package."""
    # Not in node_modules: the compiler takes the sources there for another package's.
    built, package = work / "build", work / "node_modules/portcullis-lock"
    built.mkdir()
    for name in ("package.json", "README.md", "tsconfig.json"):
        shutil.copy(PACKAGE / name, built)
    for name in ("src", "bin", "scripts", "types"):
        shutil.copytree(PACKAGE / name, built / name)
    run("node", built / "scripts/build.mjs")
    package.parent.mkdir()
    built.rename(package)
    shutil.copytree(HERE / "suites", work / "suites")
    shutil.copytree(ROOT / "tests/embed/node", work / "embed")
    (work / "package.json").write_text('{ "type": "module" }\n')
    for config, compiler in CONFIGS.items():
        run("node", modules / f"node_modules/{compiler}/bin/tsc", "-p", f"suites/{config}", cwd=work)
    # The same package and suites beside the oldest client libraries that are tested.
    old = work / "old"
    (old / "node_modules").mkdir(parents=True)
    shutil.copytree(package, old / "node_modules/portcullis-lock", ignore=shutil.ignore_patterns("src", "types"))
    for name in ("suites", "embed"):
        shutil.copytree(work / name, old / name)
    shutil.copy(work / "package.json", old)
    for name in ("ioredis", "redis"):
        (old / "node_modules" / name).symlink_to(modules / f"node_modules/{name}-5")
    return package


class Suite:
    """A suite: a command, its environment, and the folder that it runs in."""

    def __init__(self, name, command, cwd, environment=None):
        self.name, self.command, self.cwd, self.environment = name, command, cwd, environment or {}

    def run(self):
        """Returns the numbers of passed and failed tests, the seconds, and the output."""
        start = time.monotonic()
        try:
            done = subprocess.run(
                [str(word) for word in self.command],
                cwd=self.cwd,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE_S,
            )
            output, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as late:
            output, code = (late.stdout or b"").decode(), "time-out"
        return *count(output, code), time.monotonic() - start, output


def count(output, code):
    lines = output.splitlines()
    passed = sum(bool(PASSED.match(line)) for line in lines)
    failed = sum(bool(FAILED.match(line)) for line in lines)
    if failed == 0 and (code != 0 or passed == 0):
        failed = 1
    return passed, failed


def tap(node, *files):
    return [node, "--test-reporter=tap", *files]


def version(node):
    return int(run(node, "-p", "process.versions.node.split('.')[0]"))


def suites(node, modules, work, durable):
    """All suites but those with nodes."""
    major = version(node)
    old = work / "old"
    # Where the client libraries are, in a suite's name and as a folder.
    places = {"": work, " 5": old} if major >= NEWEST_CLIENTS_NODE else {" 5": old}
    home = next(iter(places.values()))
    for driver in ("ioredis", "node-redis"):
        for suite in ("locks", "connections", "losses", "refusals", "outages", "silence", "durable", "tls"):
            yield Suite(f"{suite}, {driver}", tap(node, f"suites/{suite}.test.mjs"), home, {"DRIVER": driver})
        if home != old:
            yield Suite(f"locks, {driver} 5", tap(node, "suites/locks.test.mjs"), old, {"DRIVER": driver})
        flags = f"{DURABLE} {durable / driver}"
        yield Suite(f"locks, durable, {driver}", tap(node, "suites/locks.test.mjs"), home, {"DRIVER": driver, "FLAGS": flags})
    for suite in ("package", "databases", "channels"):
        yield Suite(suite, tap(node, f"suites/{suite}.test.mjs"), home)
    yield Suite("types", [node, "suites/types.js"], home)
    # An application's tests, and the snippets of the guide.
    for protocol in ("2", "3"):
        yield Suite(f"embed, node:test, RESP{protocol}", tap(node, "embed/orders.node.mjs"), home, {"PROTOCOL": protocol})
    for file in sorted((work / "embed").glob("guide-*.mjs")):
        # Before, the fake timers of node:test were others.
        if file.stem != "guide-timers" or major >= NEWEST_CLIENTS_NODE:
            yield Suite(f"guide, {file.stem}", tap(node, file.relative_to(work)), home)
    jest = [node, "--experimental-vm-modules", modules / "node_modules/jest/bin/jest.js", "--verbose", "--rootDir"]
    files = ["--testMatch", "**/embed/orders.test.mjs", "--testMatch", "**/suites/timers.test.mjs", "--modulePathIgnorePatterns", "/old/"]
    quiet = {"NODE_NO_WARNINGS": "1"}
    yield Suite("Jest", [*jest, home, *(files if home == work else files[:-2])], home, quiet)
    shared = home / "suites/shared"
    one_server = {"testMatch": ["**/*.test.mjs"], "globalSetup": "portcullis-lock/testing/global-setup", "maxWorkers": 2}
    yield Suite("Jest, one server", [*jest, shared, "--config", json.dumps(one_server)], home, quiet)
    if major < NEWEST_CLIENTS_NODE:
        return
    yield Suite("testcontainers", tap(node, "suites/testcontainers.test.mjs"), home)
    yield Suite("fake timers, node:test", tap(node, "suites/timers.node.mjs"), work)
    vitest = [node, modules / "node_modules/vitest/vitest.mjs", "run", "--reporter=verbose", "--exclude=**/old/**", "--root"]
    yield Suite("Vitest", [*vitest, work, "embed/orders.test.mjs", "suites/timers.test.mjs"], work)
    one_server = ["--config", work / "embed/vitest.config.mjs", "--maxWorkers=2"]
    for pool in ("forks", "threads"):
        yield Suite(f"Vitest, one server, {pool}", [*vitest, shared, *one_server, f"--pool={pool}"], work)
    if major >= GLOBAL_SETUP_NODE:
        setup = f"--test-global-setup={work / 'node_modules/portcullis-lock/dist/esm/testing/global-setup.js'}"
        yield Suite("node:test, one server", tap(node, "--test", setup, "--test-concurrency=2", "a.test.mjs", "b.test.mjs"), shared)


def oldest(modules, work):
    """A part of the suites, under the oldest Node.js that the package supports."""
    node = modules / OLDEST_NODE
    for driver in ("ioredis", "node-redis"):
        for suite in ("locks", "connections", "losses", "refusals", "outages", "silence"):
            yield Suite(f"Node 18, {suite}, {driver} 5", tap(node, f"suites/{suite}.test.mjs"), work / "old", {"DRIVER": driver})
    for file in ("suites/package.test.mjs", "suites/databases.test.mjs", "embed/orders.node.mjs"):
        yield Suite(f"Node 18, {pathlib.Path(file).name.split('.')[0]}", tap(node, file), work / "old")
    yield Suite("Node 18, types", [node, "suites/types.js"], work / "old")


def with_nodes(node, program, work, drivers):
    """The suite whose leader is killed, with each client library, on one cluster."""
    place = work if version(node) >= NEWEST_CLIENTS_NODE else work / "old"
    commands = {driver: tap(node, place / "suites/nodes.test.mjs") for driver in drivers}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        with nodes.Nodes(program, folder, nodes.free_ports(2 * nodes.NODES)) as cluster:
            cluster.leader()
            cluster.wait_for_votes()
            ports = ",".join(map(str, cluster.ports))
            deadline = time.monotonic() + PATIENCE_S
            running = {}
            for driver, command in commands.items():
                running[driver] = nodes.Suite(command, os.environ | {"NODE_PORTS": ports, "DRIVER": driver})
            for suite in running.values():
                suite.ready.wait(max(0.1, deadline - time.monotonic()))
            cluster.kill_leader()
            for suite in running.values():
                suite.tell("killed")
            for driver, suite in running.items():
                passed, failed, said = suite.finish(deadline)
                output = "\n".join([*suite.lines, said, cluster.logs() if failed else ""])
                yield f"3 nodes, leader killed, {driver}", len(passed), len(failed), time.monotonic() - start, output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True, help="the server")
    parser.add_argument("--node", default="node", help="the Node.js that the suites run under; node of the PATH unless given")
    parser.add_argument("--only", action="append", help="a part of a suite's name; may be given several times")
    parser.add_argument("--strict", action="store_true", help="what cannot run here is a failure")
    arguments = parser.parse_args()
    for program in ("node", "npm", arguments.node):
        if shutil.which(program) is None:
            print(f"SKIPPED: the JavaScript package: {program} is not installed\n0 passed, {int(arguments.strict)} failed")
            raise SystemExit(int(arguments.strict))
    program = arguments.program.resolve()
    os.environ |= {"PORTCULLIS": str(program), "NO_COLOR": "1", "CI": "1"}
    os.environ.pop("FORCE_COLOR", None)
    modules = dependencies(arguments.cache.resolve())

    def is_chosen(name):
        return not arguments.only or any(part in name for part in arguments.only)

    total_passed, total_failed = 0, 0

    def report(name, passed, failed, seconds, output):
        nonlocal total_passed, total_failed
        total_passed, total_failed = total_passed + passed, total_failed + failed
        print(f"{name:<40}{passed:>6} passed{failed:>5} failed{seconds:>8.1f} s", flush=True)
        if failed:
            print("".join(f"    {line}\n" for line in PASSED_BLOCK.sub("", output).splitlines()[-120:]), end="", flush=True)

    def skip(why):
        nonlocal total_failed
        print(f"SKIPPED: {why}", flush=True)
        total_failed += arguments.strict

    with tempfile.TemporaryDirectory() as durable, tempfile.TemporaryDirectory(dir=modules) as folder:
        work = pathlib.Path(folder)
        start = time.monotonic()
        build(modules, work)
        report("build and types, strict", 1, 0, time.monotonic() - start, "")
        for driver in ("ioredis", "node-redis"):
            (pathlib.Path(durable) / driver).mkdir()
        node = os.path.abspath(shutil.which(arguments.node))
        every = list(suites(node, modules, work, pathlib.Path(durable)))
        if (modules / OLDEST_NODE).exists():
            every += oldest(modules, work)
        else:
            skip("Node 18: the pinned packages have none for this platform")
        if shutil.which("openssl") is None:
            skip("TLS: openssl is not installed")
            every = [suite for suite in every if not suite.name.startswith("tls,")]
        chosen = [suite for suite in every if is_chosen(suite.name)]
        # Two at once: suites wait more than they work.
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for suite, outcome in zip(chosen, pool.map(Suite.run, chosen)):
                report(suite.name, *outcome)
        if is_chosen("3 nodes, leader killed"):
            for name, *outcome in with_nodes(node, program, work, ["ioredis", "node-redis"]):
                report(name, *outcome)
    print(f"{total_passed} passed, {total_failed} failed")
    raise SystemExit(1 if total_failed else 0)


if __name__ == "__main__":
    main()
