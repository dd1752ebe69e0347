"""The server's process."""

from __future__ import annotations

import pathlib
import subprocess
import tempfile
import time
from typing import Any, List, Optional

import redis
import redis.asyncio

from portcullis_lock import _sync, aio
from portcullis_lock._clock import now
from portcullis_lock._program import find_program
from portcullis_lock.testing.clock import Clock
from portcullis_lock.testing.control import Control
from portcullis_lock.testing.faults import Faults
from portcullis_lock.testing.losses import Losses


class Portcullis:
    """A server in test mode, on a free port of the loopback interface. It ends with the `with` block, or with this process, even if that is killed:
    it watches its standard input, which the system closes then."""

    username: Optional[str] = None
    unixsocket: Optional[str] = None

    def __init__(self, *flags: str, program: Optional[str] = None, patience: float = 10.0) -> None:
        """Starts it. `flags` are further ones of `portcullis serve`, such as "--requirepass", "secret". Raises ProgramNotFoundError, or RuntimeError
        with the server's log if it does not start within `patience` seconds."""
        self.program = find_program(program)
        self._directory = tempfile.TemporaryDirectory(prefix="portcullis-")
        ready = pathlib.Path(self._directory.name, "ready")
        log = pathlib.Path(self._directory.name, "log")
        command = [self.program, "serve", "--test-mode", "--end-with-stdin", "--port", "0", "--bind", "127.0.0.1"]
        command += ["--dir", self._directory.name, "--ready-file", str(ready)]
        with log.open("wb") as out:
            self._process = subprocess.Popen([*command, *flags], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT)
        end = now() + patience
        while not ready.exists():
            if self._process.poll() is not None or now() > end:
                said = log.read_text(errors="replace")
                self.stop()
                raise RuntimeError(f"{self.program} does not start: {said}")
            time.sleep(0.0005)
        self.host, _, port = ready.read_text().strip().rpartition(":")
        self.port = int(port)
        self.password = flags[flags.index("--requirepass") + 1] if "--requirepass" in flags else None
        login = f":{self.password}@" if self.password else ""
        self.url = f"redis://{login}{self.host}:{self.port}"
        self._control = Control(self.host, self.port, self.password)
        self._order = self._control.order
        self._losses = Losses(self._order, self.host, self.port)
        self.clock = Clock(self._order, self._losses)
        self.faults = Faults(self._order)

    def __enter__(self) -> Portcullis:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def client(self, **options: Any) -> redis.Redis:
        """A redis-py client of it, with the options of `redis.Redis`. Replies are strings unless `decode_responses=False`."""
        options = {"decode_responses": True, "password": self.password, **options}
        return redis.Redis(host=self.host, port=self.port, **options)

    def async_client(self, **options: Any) -> redis.asyncio.Redis:
        """The same for asyncio."""
        options = {"decode_responses": True, "password": self.password, **options}
        return redis.asyncio.Redis(host=self.host, port=self.port, **options)

    def locks(self, **options: Any) -> _sync.Locks:
        """Native locks of it, as `portcullis_lock.connect` gives."""
        return _sync.connect(self.url, **options)

    def async_locks(self, **options: Any) -> aio.Connecting:
        """The same for asyncio: `async with server.async_locks() as locks`."""
        return aio.connect(self.url, **options)

    def reset(self) -> None:
        """Empties the server: data, scripts, functions and faults go, and the clock runs at the real time. Takes about a millisecond.

        Configuration, users and connections stay. A client that is still blocked since an earlier test is unblocked. A client whose request is
        delayed by a fault loses its connection and the request."""
        self.faults.reset()
        info = self.clock.info()
        if info["blocked-clients"]:
            listed = self._order("CLIENT", "LIST")
            for client in listed if isinstance(listed, list) else [_fields(line) for line in listed.splitlines()]:
                if "b" in client["flags"] and not self._order("CLIENT", "UNBLOCK", client["id"]):
                    self._order("CLIENT", "KILL", "ID", client["id"])
        orders = ["FAULT JOURNAL 0", "CLOCK RESUME", "FLUSHALL", "SCRIPT FLUSH", "FUNCTION FLUSH"]
        if info["frozen"] or abs(info["unix-ms"] - time.time() * 1000) > 100:
            orders.insert(2, f"CLOCK SET {round(time.time() * 1000)}")
        self._control.orders(orders)

    def restart(self, lose: Optional[int] = None) -> Optional[int]:
        """Restarts the server without its data. With `lose`, simulates a failover that loses that many last writes, if `journal` has kept them;
        returns their number. When this returns, grants of this process that the server has lost know it."""
        lost = self._order("FAULT", "RESTART", *(() if lose is None else ("LOSE", lose)))
        self._control.disconnect()
        self._losses.tell()
        return None if lose is None else int(lost)

    def journal(self, writes: int) -> None:
        """Keeps this many last writes from now on, so that `restart` can lose them."""
        self._order("FAULT", "JOURNAL", writes)

    def leaked_locks(self, *patterns: str) -> List[str]:
        """The locks that are still held, each as a line of text: native ones, and plain keys that match one of the patterns or, without any, whose
        names say that they are locks (`lock:a`, `job-7.mutex`, `orderLock`)."""
        leaks = self._order("FAULT", "LEAKS", *patterns)
        return [str(dict(zip(leak[::2], leak[1::2]))["text"]) for leak in leaks]

    def assert_no_leaked_locks(self, *patterns: str) -> None:
        """Raises AssertionError that names the locks that are still held."""
        leaks = self.leaked_locks(*patterns)
        if leaks:
            raise AssertionError("locks are still held:\n  " + "\n  ".join(leaks))

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Ends it, for certain; may be called twice."""
        if hasattr(self, "_control"):
            self._control.close()
        self._process.kill()
        self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()
        self._directory.cleanup()


def _fields(line: str) -> dict[str, str]:
    return dict(field.split("=", 1) for field in line.split(" ") if "=" in field)


