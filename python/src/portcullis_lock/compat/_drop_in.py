"""What both drop-in classes are: redis-py's constructor, and each method as a coroutine of the core.

`local.token` is the owner on the server, so that a process can release what another one has acquired by setting `local.token`, as with redis-py. A
forked child has a copy of its parent's token, and so can release and extend the lock, too: a program that forks into the background, or hands a lock
to a worker, relies on it. But a child that leaves the `with` block of its parent does not release the lock, of which redis-py's does.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import uuid
import weakref
from typing import Any, ClassVar, Literal, Optional, TypeVar, Union

from redis.exceptions import LockError, LockNotOwnedError

from portcullis_lock import _acquire, _calls, errors
from portcullis_lock._clock import now
from portcullis_lock._held import Handle
from portcullis_lock._request import Request

log = logging.getLogger("portcullis_lock")

Token = Union[str, bytes]
T = TypeVar("T")

# Lease of a lock without a timeout. It is renewed while this process lives.
_LEASE = 30.0


class Slot:
    """The token and the grant of a lock object."""

    token: Optional[bytes] = None
    grant: Optional[Handle] = None


class ThreadSlot(threading.local):
    """The same for each thread."""

    token: Optional[bytes] = None
    grant: Optional[Handle] = None


class Registry(weakref.WeakKeyDictionary[Any, T]):
    """The locks of each redis-py client, which its lock objects share."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self._make, self._guard = make, threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        # Another thread of the parent may have held it.
        self._guard = threading.RLock()

    def of(self, client: Any) -> T:
        with self._guard:
            found = self.get(client)
            if found is None:
                found = self[client] = self._make(client)
            return found


class DropIn:
    """State and methods of a drop-in. The two classes derive from it first, and from redis-py's class of theirs."""

    _registry: ClassVar[Registry[Any]]

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
        # redis-py's two classes declare different types for it.
        self.name: Any = name
        self.redis, self.timeout, self.sleep = redis, timeout, sleep
        self.blocking, self.blocking_timeout, self.thread_local = blocking, blocking_timeout, bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local: Any = ThreadSlot() if thread_local else Slot()
        locks = self._registry.of(redis)
        self._core, self._keeper, self._grant_type = locks._core, locks._keeper, locks._grant_type
        self._name = _text_of(name.tobytes() if isinstance(name, memoryview) else name)

    async def _enter(self) -> None:
        if not await self._acquire(None, None, None, None):
            raise LockError("Unable to acquire lock within the time specified", self._name)

    async def _leave(self) -> None:
        if self.local.grant is not None and not self.local.grant._held.is_ours:
            return
        try:
            await self._release()
        except LockError:
            if self.raise_on_release_error:
                raise
            log.warning("Lock was unlocked or no longer owned when exiting context manager.")

    async def _acquire(self, sleep: Optional[float], blocking: Optional[bool], blocking_timeout: Optional[float], token: Optional[Token]) -> bool:
        # A wait in seconds; None waits for ever.
        wait = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        if not (self.blocking if blocking is None else blocking):
            wait = 0.0
        lease, renew = (float(self.timeout), False) if self.timeout else (_LEASE, True)
        if token is None:
            request = Request("lock", (self._name,), lease, math.inf if wait is None else wait, uuid.uuid1().hex, renew=renew)
            grant: Optional[Handle] = await _acquire.acquire(self._core, self._keeper, request, self._grant_type)
        else:
            request = Request("lock", (self._name,), lease, None, _text_of(token), renew=renew)
            grant = await self._acquire_once(request, math.inf if wait is None else now() + wait, sleep or self.sleep)
        if grant is None:
            return False
        if renew:
            # redis-py's lock without a timeout stays when its object is collected. So does this one, while the process lives.
            grant._held.pinned = grant
            if grant._held.cause is not None:  # It was lost meanwhile, which ends the pinning.
                grant._held.pinned = None
        self.local.grant, self.local.token = grant, grant.owner.encode("utf-8", "surrogateescape")
        return True

    async def _acquire_once(self, request: Request, end: float, sleep: float) -> Optional[Handle]:
        """Acquires with the caller's token. The same owner acquires a native lock again, and redis-py's lock does not: a second hold is given back."""
        while True:
            if await self._holds_of(request.owner) == 0:
                grant: Optional[Handle] = await _acquire.acquire(self._core, self._keeper, request, self._grant_type)
                if grant is not None:
                    if await self._holds_of(request.owner) <= 1:
                        return grant
                    await _acquire.release(self._core, self._keeper, grant._held)
            if now() + sleep > end:
                return None
            await self._core.world.pause(sleep)

    async def _holds_of(self, owner: Optional[str]) -> int:
        """How often an owner holds the lock."""
        info = await _calls.info(self._core, self._name)
        return sum(holder.holds for holder in info.holders if holder.owner == owner) if info else 0

    async def _is_locked(self) -> bool:
        return bool(await self._core.ask("EXISTS", self._name))

    async def _is_owned(self) -> bool:
        token = self.local.token
        return token is not None and await self._holds_of(_text_of(token)) > 0

    async def _release(self) -> None:
        token, grant = self.local.token, self.local.grant
        if token is None:
            raise LockError("Cannot release a lock that's not owned or is already unlocked.", self._name)
        self.local.token = self.local.grant = None
        try:
            if grant is not None and grant._held.is_ours and not grant.released and grant.owner == _text_of(token):
                await _acquire.release(self._core, self._keeper, grant._held)
            else:
                await self._core.ask("LOCK.RELEASE", self._name, _text_of(token), "REQUEST", uuid.uuid4().hex, name=self._name)
        except errors.NotHeldError as error:
            raise self._not_owned("release", error) from error

    async def _extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        self._check_extendable("extend")
        lease_ms = int(additional_time * 1000)
        if not replace_ttl:
            lease_ms += max(0, int(await self._core.ask("PTTL", self._name)))
        return await self._renew(lease_ms, "extend")

    async def _reacquire(self) -> Literal[True]:
        self._check_extendable("reacquire")
        return await self._renew(int((self.timeout or 0) * 1000), "reacquire")

    def _check_extendable(self, doing: str) -> None:
        if self.local.token is None:
            raise LockError(f"Cannot {doing} an unlocked lock", self._name)
        if self.timeout is None:
            raise LockError(f"Cannot {doing} a lock with no timeout", self._name)

    async def _renew(self, lease_ms: int, doing: str) -> Literal[True]:
        sent = now()
        try:
            left_ms = await self._core.ask("LOCK.RENEW", self._name, _text_of(self.local.token), max(1, lease_ms), name=self._name)
        except errors.NotHeldError as error:
            raise self._not_owned(doing, error) from error
        if self.local.grant is not None:
            self._keeper.answered(self.local.grant._held, sent, int(left_ms) / 1000)
        return True

    def _not_owned(self, doing: str, error: errors.NotHeldError) -> LockNotOwnedError:
        return LockNotOwnedError(f"Cannot {doing} a lock that's no longer owned: {error.cause}", self._name)


def _text_of(word: Any) -> str:
    return word.decode("utf-8", "surrogateescape") if isinstance(word, bytes) else str(word)
