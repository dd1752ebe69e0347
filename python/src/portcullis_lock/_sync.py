"""The blocking interface."""

from __future__ import annotations

import math
import threading
from types import TracebackType
from typing import Any, ClassVar, Optional, Type, TypeVar, Union, cast

from portcullis_lock import _acquire, _calls, _target
from portcullis_lock._core import Core
from portcullis_lock._describe import Locks as Describing
from portcullis_lock._held import Handle
from portcullis_lock._keeper_sync import ThreadKeeper
from portcullis_lock._link import run
from portcullis_lock._link_sync import BlockingWorld
from portcullis_lock._request import Request
from portcullis_lock.info import LockInfo, Throttled

G = TypeVar("G", bound="Grant")


class Grant(Handle):
    """A lock, several locks, or permits of a semaphore, while they are held."""

    __slots__ = ()
    _locks: ClassVar[Locks]

    @property
    def lost(self) -> threading.Event:
        """Is set when the grant ends other than by its release. `lost_because` says why."""
        return cast(threading.Event, self._held.lost_event(threading.Event, self))

    def renew(self) -> float:
        """Restarts the lease now. Returns its seconds. Not needed with `renew=True`. Raises NotHeldError, or an error of the connection."""
        return run(_calls.renew(self._locks._core, self._locks._keeper, self._held))

    def check(self) -> bool:
        """Asks the server whether it is still held. `is_held` answers without asking."""
        return run(_calls.check(self._locks._core, self._held))

    def release(self) -> None:
        """Releases it. Later calls do nothing. Raises NotHeldError if the grant has ended before, or an error of the connection if the server could
        not be reached; the lock then ends with its lease. In a forked child, raises OtherProcessError for a grant of its parent."""
        run(_acquire.release(self._locks._core, self._locks._keeper, self._held))

    def __enter__(self: G) -> G:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        run(_calls.leave(self._locks._core, self._locks._keeper, self._held, error))


class Lock:
    """Description of a lock, several locks, or a semaphore. It does no I/O before it is acquired, and can be acquired by many threads."""

    def __init__(self, locks: Locks, request: Request) -> None:
        self._locks = locks
        self._request = request
        self._entered: list[tuple[int, Grant]] = []

    def acquire(self) -> Optional[Grant]:
        """Acquires. Returns None if it is not granted within `wait`.

        Raises DeadlockError, LimitError, NotPortcullisError, NoLeaderError, or redis-py's ConnectionError or TimeoutError."""
        return self._acquire(self._request)

    def try_acquire(self) -> Optional[Grant]:
        """Acquires if that is possible at once, whatever `wait` is."""
        return self._acquire(_calls.without_wait(self._request))

    def _acquire(self, request: Request) -> Optional[Grant]:
        return run(_acquire.acquire(self._locks._core, self._locks._keeper, request, self._locks._grant_type))

    def __enter__(self) -> Grant:
        grant = self.acquire()
        if grant is None:
            raise run(_calls.not_acquired(self._locks._core, self._locks._keeper, self._request))
        self._entered.append((threading.get_ident(), grant))
        return grant

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        grant = _calls.leaving(self._entered, threading.get_ident())
        run(_calls.leave(self._locks._core, self._locks._keeper, grant._held, error))


class Latch:
    """A count that threads and processes wait for until it is 0."""

    def __init__(self, locks: Locks, name: str) -> None:
        self._core, self.name = locks._core, name

    def set(self, count: int, ttl: Optional[float] = None) -> bool:
        """Sets the count, and forgets the latch after `ttl` seconds. Returns False if it is already set and not yet open."""
        return run(_calls.latch_set(self._core, self.name, count, ttl))

    def down(self, by: int = 1) -> int:
        """Counts down. Returns the count that is left. It is not repeated if its reply is lost, since it could count twice."""
        return run(_calls.latch_down(self._core, self.name, by))

    def wait(self, timeout: float = math.inf) -> bool:
        """Waits for the count of 0, at most so many seconds. Returns whether it was reached."""
        return run(_calls.latch_wait(self._core, self.name, timeout))


class Guard:
    """A resource that refuses smaller fencing tokens than the largest it has seen."""

    def __init__(self, locks: Locks, resource: str) -> None:
        self._core, self.resource = locks._core, resource

    def write(self, token: Union[int, Grant]) -> None:
        """Call this right before each write. Raises StaleTokenError if a later holder has written."""
        run(_calls.guard(self._core, self.resource, token))


class Locks(Describing[Lock, Latch, Guard]):
    """Locks of one server. Made by `connect` and `over`; threads can share it."""

    def __init__(self, target: _target.Target, timeout: float, retry_for: float, idle_max: int) -> None:
        super().__init__(Lock, Latch, Guard)
        self._core = Core(target, BlockingWorld(lambda push: self._keeper.pushed(push)), timeout=timeout, retry_for=retry_for, idle_max=idle_max)
        self._keeper = ThreadKeeper(self._core)
        # Grants know their locks without an argument for each.
        self._grant_type: Type[Grant] = type("Grant", (Grant,), {"__slots__": (), "_locks": self, "__module__": __name__})

    def throttle(self, name: str, max_burst: int, count: int, period: float, quantity: int = 1) -> Throttled:
        """Counts a request against a rate limit: `count` each `period` seconds, and `max_burst` more at once. It is not repeated if its reply is
        lost, since it could count twice."""
        return run(_calls.throttle(self._core, name, max_burst, count, period, quantity))

    def info(self, name: str) -> Optional[LockInfo]:
        """Who holds a lock, and who waits for it. None if there is no such lock."""
        return run(_calls.info(self._core, name))

    def break_(self, name: str, token: int, reason: str) -> bool:
        """Ends the grant with this token, and serves the next waiter. Returns whether there was such a grant. LOCK.WHY shows the reason."""
        return run(_calls.break_(self._core, self._keeper, name, token, reason))

    def ping(self) -> str:
        """Connects, and returns what the server is. Raises NotPortcullisError if it has no native locks."""
        return run(_calls.ping(self._core))

    def close(self, release: bool = True) -> None:
        """Releases what is still held, and closes the connections. Without `release`, what is held ends with its lease."""
        if release:
            run(_calls.release_all(self._core, self._keeper))
        self._keeper.abandon()
        self._core.close()
        self._keeper.wake()

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(url: str = "redis://127.0.0.1:6379", *, timeout: float = 5.0, retry_for: float = 5.0, idle_max: int = 16, **options: Any) -> Locks:
    """Locks of the server at this URL. Connects when it is first used; `ping()` does at once.

    timeout: seconds for connecting and for each reply, besides the wait. A wait ends at most a second late.
    retry_for: how many seconds a request without a wait is repeated when its connection breaks. A request with a wait is repeated until its end.
    idle_max: how many unused connections are kept.
    options: of redis-py's connections: db, username, password, credential_provider, client_name, ssl_…

    Raises TypeError if the URL is not a str, and ValueError if it is wrong.
    """
    return Locks(_target.parse(url, options), timeout, retry_for, idle_max)


def over(client: Any, *, timeout: float = 5.0, retry_for: float = 5.0, idle_max: int = 16) -> Locks:
    """Locks of the server of a redis-py client. It has connections of its own, with the client's address and login."""
    return Locks(_target.of_client(client), timeout, retry_for, idle_max)

