"""A Portcullis server for tests, and pytest fixtures for it. Copy this file beside your tests; it needs redis-py and nothing else.

In `conftest.py`:

    from portcullis_server import portcullis, portcullis_process, pytest_configure  # noqa: F401

In a test:

    def test_a_lease_that_is_over_is_had_by_another(portcullis):
        client = portcullis.client()
        portcullis.clock.freeze()
        assert client.set("lock:a", "alice", nx=True, px=10_000)
        portcullis.clock.advance(10)
        assert client.set("lock:a", "bob", nx=True, px=10_000)
        client.delete("lock:a")

One process serves the whole run (each worker of pytest-xdist has its own); before each test it is emptied, and after each test no lock may be
held any more, unless the test is marked with `@pytest.mark.leaks_locks`. The program is `portcullis` on the PATH, or what the environment
variable PORTCULLIS names. It ends with the test run, also when that is killed: it watches its standard input, which the system closes then.
"""

import inspect
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import redis

try:
    import pytest
except ImportError:  # unittest and others use the class alone
    pytest = None


class Portcullis:
    """A server in test mode, on a free port of the loopback interface. Ends with the `with` block, or with this process."""

    def __init__(self, *flags, program=None, patience=10.0):
        """Starts it; `flags` are further ones of `portcullis serve`, such as "--requirepass", "secret"."""
        program = program or os.environ.get("PORTCULLIS") or shutil.which("portcullis")
        if not program:
            raise RuntimeError("no portcullis on the PATH; PORTCULLIS may name it")
        self._directory = tempfile.TemporaryDirectory(prefix="portcullis-")
        ready = pathlib.Path(self._directory.name, "ready")
        log = pathlib.Path(self._directory.name, "log")
        command = [program, "serve", "--test-mode", "--end-with-stdin", "--port", "0", "--bind", "127.0.0.1"]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*command, "--ready-file", ready, *flags], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT
            )
        end = time.monotonic() + patience
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                said = log.read_text(errors="replace")
                self.stop()
                raise RuntimeError(f"{program} does not start: {said}")
            time.sleep(0.0005)
        self.host, port = ready.read_text().strip().rsplit(":", 1)
        self.port = int(port)
        self.url = f"redis://{self.host}:{self.port}/0"
        self._password = flags[flags.index("--requirepass") + 1] if "--requirepass" in flags else None
        # This connection sends nothing at connect that a fault could hit, so CLOCK and FAULT always work.
        known = inspect.signature(redis.Redis).parameters
        options = ("driver_info",) if "driver_info" in known else ("lib_name", "lib_version")
        silent = {option: None for option in options if option in known}
        self._control = self.client(decode_responses=True, protocol=2, **silent)
        self.clock = Clock(self._order)
        self.faults = Faults(self._order)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def client(self, **options):
        """A redis-py client of it, with the options of `redis.Redis`. Strings unless `decode_responses=False`."""
        options = {"decode_responses": True, "password": self._password} | options
        return redis.Redis(host=self.host, port=self.port, **options)

    def _order(self, *words):
        return self._control.execute_command(*words)

    def reset(self):
        """Resets the server: deletes data, scripts, functions and faults, and lets the clock run at the real time. Takes under a millisecond.

        Configuration, users and connections stay. A client that is still blocked since an earlier test is unblocked. A client whose request
        is delayed by a fault loses its connection and the request."""
        self._order("FAULT", "RESET")
        if self.clock.info()["blocked-clients"]:
            clients = self._order("CLIENT", "LIST")
            clients = clients if isinstance(clients, list) else [_fields(line) for line in clients.splitlines()]
            for client in clients:
                if "b" in client["flags"] and not self._order("CLIENT", "UNBLOCK", client["id"]):
                    self._order("CLIENT", "KILL", "ID", client["id"])
        pipeline = self._control.pipeline(transaction=False)
        for words in ("FAULT JOURNAL 0", "CLOCK RESUME"):
            pipeline.execute_command(*words.split(" "))
        pipeline.execute_command("CLOCK", "SET", int(time.time() * 1000))
        for words in ("FLUSHALL", "SCRIPT FLUSH", "FUNCTION FLUSH"):
            pipeline.execute_command(*words.split(" "))
        pipeline.execute()

    def restart(self, lose=None):
        """Restarts the server without its data. With `lose`, simulates a failover that loses that many last writes, if `journal` kept them;
        returns their number."""
        lost = self._order("FAULT", "RESTART", *(() if lose is None else ("LOSE", lose)))
        self._control.connection_pool.disconnect()
        return None if lose is None else lost

    def journal(self, writes):
        """Keeps this many last writes from now on, so that `restart` can lose them."""
        self._order("FAULT", "JOURNAL", writes)

    def until_blocked(self, count=1, patience=10.0):
        """Waits until this many clients are blocked: in BLPOP, on a lock, by a pause or by a delay."""
        end = time.monotonic() + patience
        while (blocked := self.clock.info()["blocked-clients"]) != count:
            if time.monotonic() > end:
                raise AssertionError(f"{blocked} clients wait, and not {count}")
            time.sleep(0.0005)

    def leaked_locks(self, *patterns):
        """The locks that are still held, each as a line of text: native ones, and plain keys that match one of the patterns or, without any, whose names
        say that they are locks (`lock:a`, `job-7.mutex`, `orderLock`)."""
        leaks = self._order("FAULT", "LEAKS", *patterns)
        return [dict(zip(leak[::2], leak[1::2]))["text"] for leak in leaks]

    def assert_no_leaked_locks(self, *patterns):
        leaks = self.leaked_locks(*patterns)
        assert not leaks, "locks are still held:\n  " + "\n  ".join(leaks)

    @property
    def pid(self):
        return self._process.pid

    def stop(self):
        """Ends it, for certain; may be called twice."""
        if hasattr(self, "_control"):
            self._control.close()
        self._process.kill()
        self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()
        self._directory.cleanup()


class Clock:
    """The server's clock. Times are seconds, or a `timedelta`."""

    def __init__(self, order):
        self._order = order

    def freeze(self):
        self._order("CLOCK", "FREEZE")

    def resume(self):
        self._order("CLOCK", "RESUME")

    def advance(self, seconds):
        """Moves the clock forward. When this returns, everything due has happened, and replies to waiters are sent."""
        self._order("CLOCK", "ADVANCE", _ms(seconds))

    def set(self, unix_seconds):
        """Moves it forward to a time, or steps the wall clock back to it."""
        self._order("CLOCK", "SET", _ms(unix_seconds))

    def skew(self, seconds):
        """Steps the wall clock alone, forward or back. Leases and TTLs do not change."""
        self._order("CLOCK", "SKEW", _ms(seconds))

    def info(self):
        """Whether it is frozen, the unix time in milliseconds that it shows, by how many its wall clock was stepped, and how many clients wait."""
        fields = self._order("CLOCK", "INFO")
        return dict(zip(fields[::2], fields[1::2]))


class Faults:
    """What goes wrong: see FAULT in guide/testing.md of Portcullis."""

    def __init__(self, order):
        self._order = order

    def add(self, name, what, *, on=None, client=None, probability=None, times=None, after=None):
        """`what` in the words of FAULT ADD: "DROP-REPLY", "DELAY 500", "RESTART-AFTER LOSE 1", or `("ERROR", "OOM no room")`."""
        words = list(what) if isinstance(what, (list, tuple)) else what.split()
        options = {"ON": on, "CLIENT": client, "PROBABILITY": probability, "TIMES": times, "AFTER": after}
        for option, value in options.items():
            if value is not None:
                words += [option, value]
        self._order("FAULT", "ADD", name, *words)

    def remove(self, name):
        return bool(self._order("FAULT", "DEL", name))

    def reset(self):
        return self._order("FAULT", "RESET")

    def seed(self, seed):
        """Restarts the random sequence from this seed."""
        self._order("FAULT", "SEED", seed)

    def fired(self, name):
        """How often a rule has fired."""
        rules = [dict(zip(rule[::2], rule[1::2])) for rule in self._order("FAULT", "LIST")]
        return next((int(rule["fired"]) for rule in rules if rule["name"] == name), 0)


def _ms(seconds):
    return round((seconds.total_seconds() if hasattr(seconds, "total_seconds") else seconds) * 1000)


def _fields(line):
    return dict(field.split("=", 1) for field in line.split(" ") if "=" in field)


if pytest:

    def pytest_configure(config):
        config.addinivalue_line("markers", "leaks_locks: locks may be held when the test ends")

    @pytest.fixture(scope="session")
    def portcullis_process():
        """The server of this run. Override it to give flags."""
        with Portcullis() as server:
            yield server

    @pytest.fixture
    def portcullis(portcullis_process, request):
        """The server, emptied; no lock may be held when the test has ended."""
        portcullis_process.reset()
        yield portcullis_process
        if request.node.get_closest_marker("leaks_locks") is None:
            portcullis_process.assert_no_leaked_locks()
