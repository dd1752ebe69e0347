"""What every Python client of replicated nodes does: it works, its leader is killed, and it goes on.

The runner (../nodes.py) kills the leaders when all suites have said `ready`, and says `killed`.
"""

import os
import sys
import threading
import time
import traceback

# Ports of nodes that are not in a cluster's mode, and of others that are.
SENTINELS = [("127.0.0.1", int(port)) for port in os.environ["SENTINEL_PORTS"].split(",")]
CLUSTER = [("127.0.0.1", int(port)) for port in os.environ["CLUSTER_PORTS"].split(",")]
LEASE_MS = 600_000
SUITE = os.path.basename(sys.argv[0])
_clients = []


def client(function):
    """Registers a function that returns `call(*words)` for a client that is connected."""
    _clients.append(function)
    return function


class Killed:
    """When the leaders were killed."""

    def __init__(self):
        self.at = None
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        assert sys.stdin.readline() == "killed\n"
        self.at = time.monotonic()


def drive(name, connect, ready, killed):
    """Takes and releases locks before the kill and after it. Each request has an id, so that it can be repeated."""
    call = connect()
    # All suites share the nodes.
    kept, busy, plain = (f"{use}:{SUITE}:{name}" for use in ("kept", "busy", "plain"))
    token = call("LOCK.ACQUIRE", kept, "me", LEASE_MS, "REQUEST", "1")
    assert call("SET", plain, "value") in (True, "OK", b"OK")
    last, number, after, gap_s = token, 0, 0, 0
    while after < 20:
        began = time.monotonic()
        number += 1
        next_token = call("LOCK.ACQUIRE", busy, "me", LEASE_MS, "REQUEST", f"a{number}")
        assert next_token > last, f"token {next_token} after {last}"
        last = next_token
        assert call("LOCK.RELEASE", busy, "me", "TOKEN", last, "REQUEST", f"r{number}") == 0
        if number == 5:
            ready.release()
        gap_s = max(gap_s, time.monotonic() - began)
        after += killed.at is not None and began > killed.at
        time.sleep(0.005)
    assert call("LOCK.CHECK", kept, token) == 1, "the grant is lost"
    assert call("LOCK.ACQUIRE", kept, "other", 1000) is None, "it has two holders"
    assert call("LOCK.RELEASE", kept, "me", "TOKEN", token) == 0
    assert call("LOCK.ACQUIRE", kept, "other", 1000) > last
    assert call("GET", plain) in ("value", b"value")
    return gap_s


def main():
    """Drives all clients at once. Ends the process with 1 if one failed."""
    ready, killed, failed = threading.Semaphore(0), Killed(), []

    def run(function):
        name = function.__name__
        try:
            gap_s = drive(name, function, ready, killed)
            print(f"ok {name} ({gap_s:.1f} s without a reply)", flush=True)
        except BaseException as error:
            failed.append(name)
            traceback.print_exc()
            print(f"not ok {name}: {type(error).__name__}: {error}", flush=True)
            ready.release()

    running = [threading.Thread(target=run, args=(function,), daemon=True) for function in _clients]
    for thread in running:
        thread.start()
    for _ in running:
        ready.acquire()
    print("ready", flush=True)
    for thread, function in zip(running, _clients):
        thread.join(30)
        if thread.is_alive():
            failed.append(function.__name__)
            print(f"not ok {function.__name__}: it hangs", flush=True)
    os._exit(1 if failed else 0)


def repeated(call, errors):
    """Repeats a request when the client gives up. It must have an id, or do no harm the second time."""

    def again(*words):
        deadline = time.monotonic() + 5
        while True:
            try:
                return call(*words)
            except errors:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    return again
