"""`redis.lock.Lock`'s interface over native locks: waiters queue instead of polling, and each grant has a fencing token.

    from portcullis_lock.compat import Lock

    with client.lock("report", timeout=30, lock_class=Lock):   # or Lock(client, "report", timeout=30)
        ...

It differs from redis-py's lock in three ways. `sleep` is used only with a token of your own. A lock without a `timeout` is renewed while this
process lives, so that a process that dies does not leave it behind for ever. The key is a native lock, which `GET` and `SET` refuse; redis-py's own
locks of the same name, and these, keep each other out. `portcullis_lock.compat.aio` is the same for asyncio.
"""

from __future__ import annotations

from types import TracebackType
from typing import Literal, Optional, Type, Union, cast

import redis.lock

from portcullis_lock._link import run
from portcullis_lock._sync import Grant, Locks, over
from portcullis_lock.compat._drop_in import DropIn, Registry, Token

_locks: Registry[Locks] = Registry(over)


class Lock(DropIn, redis.lock.Lock):
    """A drop-in for `redis.lock.Lock`; the arguments and errors are its own. Times are seconds."""

    _registry = _locks

    @property
    def grant(self) -> Optional[Grant]:
        """The native grant, with its fencing `token`, `remaining()` and `lost`; None while this thread has not acquired it."""
        return cast("Optional[Grant]", self.local.grant)

    def __enter__(self) -> Lock:
        run(self._enter())
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        run(self._leave())

    def acquire(
        self,
        sleep: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[float] = None,
        token: Optional[Token] = None,
    ) -> bool:
        """Acquires. Returns whether it is held."""
        return run(self._acquire(sleep, blocking, blocking_timeout, token))

    def locked(self) -> bool:
        """Whether anybody holds it, also by a plain key of this name."""
        return run(self._is_locked())

    def owned(self) -> bool:
        """Whether this lock object holds it."""
        return run(self._is_owned())

    def release(self) -> None:
        """Releases it. Raises LockError if it is not acquired, and LockNotOwnedError if it has ended before."""
        run(self._release())

    def extend(self, additional_time: Union[int, float], replace_ttl: bool = False) -> Literal[True]:
        """Adds seconds to the lease, or replaces the rest of it with them."""
        return run(self._extend(additional_time, replace_ttl))

    def reacquire(self) -> Literal[True]:
        """Restarts the lease with the timeout."""
        return run(self._reacquire())
