"""The same for asyncio: `redis.asyncio.lock.Lock`'s interface over native locks."""

from __future__ import annotations

from types import TracebackType
from typing import Literal, Optional, Type, Union, cast

import redis.asyncio.lock

from portcullis_lock.aio import Grant, Locks, over
from portcullis_lock.compat._drop_in import DropIn, Registry, Token

_locks: Registry[Locks] = Registry(over)


class Lock(DropIn, redis.asyncio.lock.Lock):
    """A drop-in for `redis.asyncio.lock.Lock`; the arguments and errors are its own. Times are seconds."""

    _registry = _locks

    @property
    def grant(self) -> Optional[Grant]:
        """The native grant, with its fencing `token`, `remaining()` and `lost`; None while it is not acquired."""
        return cast("Optional[Grant]", self.local.grant)

    async def __aenter__(self) -> Lock:
        await self._enter()
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        await self._leave()

    async def acquire(
        self,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[float] = None,
        token: Optional[Token] = None,
    ) -> bool:
        """Acquires. Returns whether it is held."""
        return await self._acquire(None, blocking, blocking_timeout, token)

    async def locked(self) -> bool:
        """Whether anybody holds it, also by a plain key of this name."""
        return await self._is_locked()

    async def owned(self) -> bool:
        """Whether this lock object holds it."""
        return await self._is_owned()

    async def release(self) -> None:
        """Releases it. Raises LockError if it is not acquired, and LockNotOwnedError if it has ended before."""
        await self._release()

    async def extend(self, additional_time: Union[int, float], replace_ttl: bool = False) -> Literal[True]:
        """Adds seconds to the lease, or replaces the rest of it with them."""
        return await self._extend(additional_time, replace_ttl)

    async def reacquire(self) -> Literal[True]:
        """Restarts the lease with the timeout."""
        return await self._reacquire()
