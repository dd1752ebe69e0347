"""The same for asyncio: `redis.asyncio.lock.Lock`'s interface over native locks."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, Literal, Optional, Type, Union, cast

import redis.asyncio.lock
from redis.exceptions import LockError

from portcullis_lock.aio import Grant, Locks, over
from portcullis_lock.compat import _shared
from portcullis_lock.compat._shared import Slot, ThreadSlot, Token

log = logging.getLogger("portcullis_lock")
_locks: _shared.Registry[Locks] = _shared.Registry(over)


class Lock(redis.asyncio.lock.Lock):
    """A drop-in for `redis.asyncio.lock.Lock`; the arguments and errors are its own. Times are seconds."""

    def __init__(
        self,
        redis: Any,
        name: str,
        timeout: Optional[float] = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: Optional[float] = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        self.redis, self.name, self.timeout, self.sleep = redis, name, timeout, sleep
        self.blocking, self.blocking_timeout, self.thread_local = blocking, blocking_timeout, bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local: Any = ThreadSlot() if thread_local else Slot()
        self._locks = _locks.of(redis)
        self._name = _shared.name_of(name)

    @property
    def grant(self) -> Optional[Grant]:
        """The native grant, with its fencing `token`, `remaining()` and `lost`; None while it is not acquired."""
        return cast("Optional[Grant]", self.local.grant)

    async def __aenter__(self) -> Lock:
        if await self.acquire():
            return self
        raise LockError("Unable to acquire lock within the time specified", self._name)

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        try:
            await self.release()
        except LockError:
            if self.raise_on_release_error:
                raise
            log.warning("Lock was unlocked or no longer owned when exiting context manager.")

    async def acquire(
        self,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[float] = None,
        token: Optional[Token] = None,
    ) -> bool:
        """Acquires. Returns whether it is held."""
        blocking = self.blocking if blocking is None else blocking
        wait = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        locks = self._locks
        held = await _shared.acquire(
            locks._core, locks._keeper, locks._grant_type, self._name, self.timeout, wait if blocking else 0.0, self.sleep, token
        )
        if held is None:
            return False
        self.local.grant, self.local.token = held, held.owner.encode("utf-8", "surrogateescape")
        return True

    async def locked(self) -> bool:
        """Whether anybody holds it, also by a plain key of this name."""
        return await _shared.is_locked(self._locks._core, self._name)

    async def owned(self) -> bool:
        """Whether this lock object holds it."""
        return await _shared.is_owned(self._locks._core, self._name, self.local.token)

    async def release(self) -> None:
        """Releases it. Raises LockError if it is not acquired, and LockNotOwnedError if it has ended before."""
        token, grant = self.local.token, self.local.grant
        if token is None:
            raise LockError("Cannot release a lock that's not owned or is already unlocked.", self._name)
        self.local.token = self.local.grant = None
        await _shared.release(self._locks._core, self._locks._keeper, self._name, token, grant)

    async def extend(self, additional_time: Union[int, float], replace_ttl: bool = False) -> Literal[True]:
        """Adds seconds to the lease, or replaces the rest of it with them."""
        if self.local.token is None:
            raise LockError("Cannot extend an unlocked lock", self._name)
        if self.timeout is None:
            raise LockError("Cannot extend a lock with no timeout", self._name)
        await _shared.extend(self._locks._core, self._name, self.local.token, self.local.grant, additional_time, replace_ttl, "extend")
        return True

    async def reacquire(self) -> Literal[True]:
        """Restarts the lease with the timeout."""
        if self.local.token is None:
            raise LockError("Cannot reacquire an unlocked lock", self._name)
        if self.timeout is None:
            raise LockError("Cannot reacquire a lock with no timeout", self._name)
        await _shared.extend(self._locks._core, self._name, self.local.token, self.local.grant, self.timeout, True, "reacquire")
        return True
