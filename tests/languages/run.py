#!/usr/bin/env python3
"""Runs the samples of guide/other-languages.md against a server: each waits for a lock, renews it, and releases it by its token.

    python3 tests/languages/run.py --program PATH [--strict]

A sample whose language or client library is not installed is skipped, with the reason; with --strict that is a failure, except for
Jedis, which is in no registry that the tests reach (JEDIS_CLASSPATH names its jars). The last line is `N passed, N failed, N skipped`.
"""

import argparse
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
GO_SOURCES = pathlib.Path("/usr/share/gocode")
PATIENCE_S = 60


class Skipped(Exception):
    """A sample cannot run here, and why."""


def need(program, package):
    if shutil.which(program) is None:
        raise Skipped(f"{program} is not installed (Debian: {package})")


def go(folder):
    need("go", "golang-go")
    if not (GO_SOURCES / "src/github.com/gomodule/redigo").exists():
        raise Skipped("redigo is not installed (Debian: golang-github-gomodule-redigo-dev)")
    environment = os.environ | {"GOPATH": str(GO_SOURCES), "GO111MODULE": "off", "GOFLAGS": "", "GOCACHE": str(folder / "go")}
    subprocess.run(["go", "build", "-o", folder / "lock", HERE / "lock.go"], env=environment, check=True)
    return [folder / "lock"]


def php(_):
    need("php", "php-cli")
    if subprocess.run(["php", "-r", "exit(extension_loaded('redis') ? 0 : 1);"]).returncode != 0:
        raise Skipped("phpredis is not installed (Debian: php-redis)")
    return ["php", HERE / "lock.php"]


def ruby(_):
    need("ruby", "ruby")
    if subprocess.run(["ruby", "-e", "require 'redis'"], stderr=subprocess.DEVNULL).returncode != 0:
        raise Skipped("redis-rb is not installed (Debian: ruby-redis)")
    return ["ruby", HERE / "lock.rb"]


def java(_):
    need("java", "default-jdk-headless")
    if "JEDIS_CLASSPATH" not in os.environ:
        raise Skipped("Jedis is no Debian package; JEDIS_CLASSPATH names its jars")
    return ["java", "-cp", os.environ["JEDIS_CLASSPATH"], HERE / "Lock.java"]


SAMPLES = {"Go, redigo": go, "PHP, phpredis": php, "Ruby, redis-rb": ruby, "Java, Jedis": java}
NOT_STRICT = {"Java, Jedis"}
# Faults, and whether the lock is held when they occur. A lock that is granted in a reply that is lost must not be held twice.
CHECKS = [("", True), ("CLOSE", True), ("RESET-AFTER", True), ("CLOSE-AFTER", False)]


class Server:
    """A server in test mode, and one connection that sends it inline commands."""

    def __init__(self, program, folder):
        ready = folder / "ready"
        command = [program, "serve", "--test-mode", "--end-with-stdin", "--port", "0", "--ready-file", ready]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while not (ready.exists() and ready.read_text().strip()):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit("the server does not start")
            time.sleep(0.01)
        self.address = ready.read_text().strip()
        host, port = self.address.rsplit(":", 1)
        self.connection = socket.create_connection((host, int(port)), timeout=10)
        self.replies = self.connection.makefile("rb")

    def ask(self, line):
        """The reply to a command, flat: a list of the texts in it."""
        self.connection.sendall(line.encode() + b"\r\n")
        return self.reply()

    def reply(self):
        line = self.replies.readline().decode().rstrip("\r\n")
        if line.startswith("-"):
            raise AssertionError(line)
        if line.startswith("$") and line != "$-1":
            return [self.replies.read(int(line[1:]) + 2)[:-2].decode()]
        if line.startswith("*"):
            return [text for _ in range(max(0, int(line[1:]))) for text in self.reply()]
        return [line[1:]]

    def until_blocked(self):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            info = self.ask("CLOCK INFO")
            if info[info.index("blocked-clients") + 1] == "1":
                return
            if time.monotonic() > deadline:
                raise AssertionError("the sample does not wait")
            time.sleep(0.01)

    def end(self):
        self.process.kill()
        self.process.wait()


def check(server, command, fault, is_held):
    """Lets a sample acquire a lock, for which it has to wait if it is held, and meet a fault, if any."""
    server.ask("FAULT RESET"), server.ask("FLUSHALL")
    (first,) = server.ask("LOCK.ACQUIRE order:42 holder 60000")
    if not is_held:
        server.ask("LOCK.RELEASE order:42 holder")
    if fault:
        server.ask(f"FAULT ADD cut {fault} ON lock.acquire TIMES 1")
    sample = subprocess.Popen([*map(str, command), server.address], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        if is_held:
            server.until_blocked()
            server.ask("LOCK.RELEASE order:42 holder")
        output, _ = sample.communicate(timeout=PATIENCE_S)
    finally:
        sample.kill()
        sample.wait()
    said = re.fullmatch(r"token (\d+)\nrenewed\nreleased\n", output)
    assert said, f"it printed {output!r}"
    assert int(said[1]) > int(first), f"token {said[1]} after {first}"
    info = server.ask("LOCK.WHY order:42")
    assert server.ask("FAULT LEAKS") == [], "a lock is left behind"
    assert "released" in info, info


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True, help="the server")
    parser.add_argument("--strict", action="store_true", help="what cannot run here is a failure")
    arguments = parser.parse_args()
    passed = failed = skipped = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        server = Server(arguments.program.resolve(), folder)
        try:
            for sample, prepare in SAMPLES.items():
                try:
                    command = prepare(folder)
                except Skipped as why:
                    print(f"SKIPPED: {sample}: {why}", flush=True)
                    skipped += 1
                    failed += arguments.strict and sample not in NOT_STRICT
                    continue
                for fault, is_held in CHECKS:
                    what = f"{sample}, {'a wait' if is_held else 'a free lock'}{fault and f', {fault}'}"
                    try:
                        check(server, command, fault, is_held)
                        print(f"ok {what}", flush=True)
                        passed += 1
                    except (AssertionError, subprocess.TimeoutExpired) as why:
                        print(f"not ok {what}: {why}", flush=True)
                        failed += 1
        finally:
            server.end()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
