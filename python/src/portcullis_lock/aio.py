"""The same for asyncio: the names, options and errors are those of `portcullis_lock`; what does I/O is awaited.

    locks = await portcullis_lock.aio.connect("redis://127.0.0.1:6379")
    async with locks.lock("order:42", lease=30, wait=5) as grant:
        await ship(order, token=grant.token)
"""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generator, Optional, Type, TypeVar, Union, cast

from portcullis_lock import _acquire, _calls, _target
from portcullis_lock._core import Core
from portcullis_lock._describe import Locks as Describing
from portcullis_lock._held import Handle
from portcullis_lock._keeper_aio import TaskKeeper
from portcullis_lock._link_aio import AsyncWorld
from portcullis_lock._request import Request
from portcullis_lock.info import LockInfo, Throttled

G = TypeVar("G", bound="Grant")


class Grant(Handle):
    """A lock, several locks, or permits of a semaphore, while they are held."""

    __slots__ = ()
    _locks: ClassVar[Locks]

    @property
    def lost(self) -> asyncio.Event:
        """Is set when the grant ends other than by its release. `lost_because` says why."""
        return cast(asyncio.Event, self._held.lost_event(asyncio.Event, self))

    async def renew(self) -> float:
        """Restarts the lease now. Returns its seconds. Not needed with `renew=True`. Raises NotHeldError, or an error of the connection."""
        return await _calls.renew(self._locks._core, self._locks._keeper, self._held)

    async def check(self) -> bool:
        """Asks the server whether it is still held. `is_held` answers without asking."""
        return await _calls.check(self._locks._core, self._held)

    async def release(self) -> None:
        """Releases it. Later calls do nothing. Raises NotHeldError if the grant has ended before, or an error of the connection if the server could
        not be reached; the lock then ends with its lease. In a forked child, raises OtherProcessError for a grant of its parent."""
        await _acquire.release(self._locks._core, self._locks._keeper, self._held)

    async def __aenter__(self: G) -> G:
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        await _calls.leave(self._locks._core, self._locks._keeper, self._held, error)


class Lock:
    """Description of a lock, several locks, or a semaphore. It does no I/O before it is acquired, and can be acquired by many tasks."""

    def __init__(self, locks: Locks, request: Request) -> None:
        self._locks = locks
        self._request = request
        self._entered: list[tuple[Any, Grant]] = []

    async def acquire(self) -> Optional[Grant]:
        """Acquires. Returns None if it is not granted within `wait`.

        Raises DeadlockError, LimitError, NotPortcullisError, NoLeaderError, or redis-py's ConnectionError or TimeoutError."""
        return await self._acquire(self._request)

    async def try_acquire(self) -> Optional[Grant]:
        """Acquires if that is possible at once, whatever `wait` is."""
        return await self._acquire(_calls.without_wait(self._request))

    async def _acquire(self, request: Request) -> Optional[Grant]:
        return await _acquire.acquire(self._locks._core, self._locks._keeper, request, self._locks._grant_type)

    async def __aenter__(self) -> Grant:
        grant = await self.acquire()
        if grant is None:
            raise await _calls.not_acquired(self._locks._core, self._locks._keeper, self._request)
        self._entered.append((asyncio.current_task(), grant))
        return grant

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        grant = _calls.leaving(self._entered, asyncio.current_task())
        await _calls.leave(self._locks._core, self._locks._keeper, grant._held, error)


class Latch:
    """A count that tasks and processes wait for until it is 0."""

    def __init__(self, locks: Locks, name: str) -> None:
        self._core, self.name = locks._core, name

    async def set(self, count: int, ttl: Optional[float] = None) -> bool:
        """Sets the count, and forgets the latch after `ttl` seconds. Returns False if it is already set and not yet open."""
        return await _calls.latch_set(self._core, self.name, count, ttl)

    async def down(self, by: int = 1) -> int:
        """Counts down. Returns the count that is left. It is not repeated if its reply is lost, since it could count twice."""
        return await _calls.latch_down(self._core, self.name, by)

    async def wait(self, timeout: float = math.inf) -> bool:
        """Waits for the count of 0, at most so many seconds. Returns whether it was reached."""
        return await _calls.latch_wait(self._core, self.name, timeout)


class Guard:
    """A resource that refuses smaller fencing tokens than the largest it has seen."""

    def __init__(self, locks: Locks, resource: str) -> None:
        self._core, self.resource = locks._core, resource

    async def write(self, token: Union[int, Grant]) -> None:
        """Call this right before each write. Raises StaleTokenError if a later holder has written."""
        await _calls.guard(self._core, self.resource, token)


class Locks(Describing[Lock, Latch, Guard]):
    """Locks of one server. Made by `connect` and `over`; tasks of one event loop can share it."""

    def __init__(self, target: _target.Target, timeout: float, retry_for: float, idle_max: int) -> None:
        super().__init__(Lock, Latch, Guard)
        self._world = AsyncWorld(lambda push: self._keeper.pushed(push), max(1, idle_max))
        self._core = Core(target, self._world, timeout=timeout, retry_for=retry_for, idle_max=idle_max)
        self._keeper = TaskKeeper(self._core)
        # Grants know their locks without an argument for each.
        self._grant_type: Type[Grant] = type("Grant", (Grant,), {"__slots__": (), "_locks": self, "__module__": __name__})

    async def throttle(self, name: str, max_burst: int, count: int, period: float, quantity: int = 1) -> Throttled:
        """Counts a request against a rate limit: `count` each `period` seconds, and `max_burst` more at once. It is not repeated if its reply is
        lost, since it could count twice."""
        return await _calls.throttle(self._core, name, max_burst, count, period, quantity)

    async def info(self, name: str) -> Optional[LockInfo]:
        """Who holds a lock, and who waits for it. None if there is no such lock."""
        return await _calls.info(self._core, name)

    async def break_(self, name: str, token: int, reason: str) -> bool:
        """Ends the grant with this token, and serves the next waiter. Returns whether there was such a grant. LOCK.WHY shows the reason."""
        return await _calls.break_(self._core, self._keeper, name, token, reason)

    async def ping(self) -> str:
        """Connects, and returns what the server is. Raises NotPortcullisError if it has no native locks."""
        return await _calls.ping(self._core)

    async def close(self, release: bool = True) -> None:
        """Releases what is still held, and closes the connections. Without `release`, what is held ends with its lease."""
        if release:
            await _calls.release_all(self._core, self._keeper)
        self._keeper.abandon()
        if self._world.tasks:
            await asyncio.wait(self._world.tasks)
        await self._keeper.stop()
        self._core.close()

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Connecting:
    """What `connect` returns: `await` it, or use it with `async with`."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks

    def __await__(self) -> Generator[Any, None, Locks]:
        return self._ready().__await__()

    async def _ready(self) -> Locks:
        return self._locks

    async def __aenter__(self) -> Locks:
        return self._locks

    async def __aexit__(self, *_: object) -> None:
        await self._locks.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"connect(…) gives no locks before it is awaited, and so no '{name}': locks = await connect(…)")


def connect(url: str = "redis://127.0.0.1:6379", *, timeout: float = 5.0, retry_for: float = 5.0, idle_max: int = 16, **options: Any) -> Connecting:
    """Locks of the server at this URL: `locks = await connect(…)`, or `async with connect(…) as locks`. The options are those of
    `portcullis_lock.connect`."""
    return Connecting(Locks(_target.parse(url, options), timeout, retry_for, idle_max))


def over(client: Any, *, timeout: float = 5.0, retry_for: float = 5.0, idle_max: int = 16) -> Locks:
    """Locks of the server of a redis-py client, synchronous or asyncio. They have connections of their own, with its address and login."""
    return Locks(_target.of_client(client), timeout, retry_for, idle_max)
