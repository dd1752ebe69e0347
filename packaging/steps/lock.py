"""Runs a lock through an installed program, over the wire: no client library is needed."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from steps.work import check

# Seconds that a server may take to start or to end.
PATIENCE = 20.0


@contextmanager
def served(program: Path, *arguments: object, wrap: Sequence[str] = ()) -> Iterator[tuple[str, int]]:
    """Runs `program serve` on a free port of this machine and gives its address. Its end must be in order."""
    with tempfile.TemporaryDirectory(prefix="portcullis-dist-") as folder:
        ready, log = Path(folder, "ready"), Path(folder, "log")
        # The log goes here, and so does a configuration that is refused before there is a log.
        command = [*wrap, program, "serve", *arguments, "--bind", "127.0.0.1", "--port", "0", "--dir", folder]
        command += ["--ready-file", ready, "--end-with-stdin"]
        with open(log, "wb") as errors:
            server = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=errors, stderr=errors)
        try:
            end = time.monotonic() + PATIENCE
            while not ready.exists():
                check(server.poll() is None and time.monotonic() < end, f"{program} does not start: {log.read_text()}")
                time.sleep(0.005)
            host, port = ready.read_text().strip().rsplit(":", 1)
            yield host, int(port)
            server.terminate()
            code = server.wait(PATIENCE)
            check(code == 0, f"{program} ended with the exit code {code}: {log.read_text()}")
        finally:
            server.kill()
            server.wait()


def lock(address: tuple[str, int], password: str = "") -> int:
    """Acquires a lock, sees it refused to a second owner, and releases it. Returns the last fencing token."""
    with socket.create_connection(address, PATIENCE) as connection:
        replies = connection.makefile("rb")

        def call(request: str) -> bytes:
            connection.sendall(request.encode() + b"\r\n")
            return replies.readline().rstrip()

        if password:
            refused = call("LOCK.ACQUIRE order:42 worker-1 30000")
            check(refused.startswith(b"-NOAUTH"), f"without a password LOCK.ACQUIRE answered {refused!r}")
            check(call(f"AUTH {password}") == b"+OK", "the password is refused")
        granted = call("LOCK.ACQUIRE order:42 worker-1 30000")
        check(granted.startswith(b":") and int(granted[1:]) > 0, f"LOCK.ACQUIRE answered {granted!r}, not a token")
        refused = call("LOCK.ACQUIRE order:42 worker-2 30000")
        check(refused == b"$-1", f"LOCK.ACQUIRE of a held lock answered {refused!r}")
        released = call("LOCK.RELEASE order:42 worker-1")
        check(released == b":0", f"LOCK.RELEASE answered {released!r}")
        again = call("LOCK.ACQUIRE order:42 worker-2 30000")
        check(again.startswith(b":") and int(again[1:]) > int(granted[1:]), f"{again!r} is no later token than {granted!r}")
        call("LOCK.RELEASE order:42 worker-2")
        return int(again[1:])


def script(address: tuple[str, int]) -> None:
    """Runs a script, which shows that Lua works."""
    with socket.create_connection(address, PATIENCE) as connection:
        request = "EVAL \"local s = 0 for i = 1, 1000 do s = s + i end return {s, redis.call('PING')}\" 0\r\n"
        connection.sendall(request.encode())
        replies = connection.makefile("rb")
        got = [replies.readline().rstrip() for _ in range(3)]
        check(got == [b"*2", b":500500", b"+PONG"], f"a script answered {got!r}")
