"""What every Python suite shares: where the server is, cases that report one line each, and a witness of mutual exclusion.

A case prints `ok NAME`, `not ok NAME: why` or `skip NAME: why`; the runner (../run.py) counts the lines.
"""

import asyncio
import inspect
import os
import threading
import time
import traceback

HOST = os.environ.get("SERVER_HOST", "127.0.0.1")
PORT = int(os.environ.get("SERVER_PORT", "6379"))
# Ports of several independent servers, for RedLock.
PORTS = [int(port) for port in os.environ.get("SERVER_PORTS", str(PORT)).split(",")]
PROTOCOL = int(os.environ.get("PROTOCOL", "2"))
URL = f"redis://{HOST}:{PORT}/0"

_cases = []


class Skip(Exception):
    """The case does not apply here, and why."""


def case(function):
    """Registers a function (plain or async) as a case under its own name."""
    _cases.append(function)
    return function


def main(before_each=None):
    """Runs all cases; ends the process with 1 if one failed."""
    failed = False
    for function in _cases:
        name = function.__name__
        try:
            if before_each:
                before_each()
            result = function()
            if inspect.iscoroutine(result):
                asyncio.run(asyncio.wait_for(result, 60))
            print(f"ok {name}", flush=True)
        except Skip as reason:
            print(f"skip {name}: {reason}", flush=True)
        except BaseException as error:  # a case must not end the others, whatever it raises
            traceback.print_exc()
            print(f"not ok {name}: {type(error).__name__}: {error}", flush=True)
            failed = True
    raise SystemExit(1 if failed else 0)


class Witness:
    """A critical section that records every entry while another worker is inside."""

    def __init__(self, limit=1):
        self.limit = limit
        self.inside = 0
        self.most = 0
        self.entries = 0
        self._guard = threading.Lock()

    def __enter__(self):
        with self._guard:
            self.inside += 1
            self.entries += 1
            self.most = max(self.most, self.inside)
        return self

    def __exit__(self, *_):
        with self._guard:
            self.inside -= 1

    def verdict(self, entries):
        """Fails unless so many came in, and never more than the limit at once."""
        assert self.most <= self.limit, f"{self.most} were in a critical section for {self.limit}"
        assert self.entries == entries, f"{self.entries} entries instead of {entries}"


def threads(count, work):
    """Runs `work(number)` in so many threads; raises what the first of them raised."""
    errors = []

    def run(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
        assert not thread.is_alive(), "a worker hangs"
    if errors:
        raise errors[0]


def elapsed(function):
    """Seconds that a call takes, and what it gives."""
    start = time.monotonic()
    result = function()
    return time.monotonic() - start, result


def raises(expected, function):
    """Fails unless the call raises just that; gives the exception."""
    try:
        function()
    except expected as error:
        return error
    raise AssertionError(f"{expected} was not raised")
