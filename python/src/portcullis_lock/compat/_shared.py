"""What both drop-in classes do, as coroutines of the core.

`local.token` is the owner on the server, so that a process can release what another one has acquired by setting `local.token`, as with redis-py.
"""

from __future__ import annotations

import math
import threading
import uuid
import weakref
from typing import Any, Optional, TypeVar, Union

from redis.exceptions import LockNotOwnedError, ResponseError

from portcullis_lock import _acquire, _calls, errors
from portcullis_lock._clock import now
from portcullis_lock._core import Core
from portcullis_lock._held import Held
from portcullis_lock._keeper import Keeper
from portcullis_lock._request import Request

Token = Union[str, bytes]
T = TypeVar("T")

# Lease of a lock without a timeout. It is renewed while this process lives.
_LEASE = 30.0


class Slot:
    """The token and the grant of a lock object."""

    token: Optional[bytes] = None
    grant: Optional[Held] = None


class ThreadSlot(threading.local):
    """The same for each thread."""

    token: Optional[bytes] = None
    grant: Optional[Held] = None


class Registry(weakref.WeakKeyDictionary[Any, T]):
    """The locks of each redis-py client, which its lock objects share."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self._make, self._guard = make, threading.Lock()

    def of(self, client: Any) -> T:
        with self._guard:
            found = self.get(client)
            if found is None:
                found = self[client] = self._make(client)
            return found


def name_of(name: Any) -> str:
    if isinstance(name, memoryview):
        name = name.tobytes()
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)


def text_of(token: Token) -> str:
    return token.decode("utf-8", "surrogateescape") if isinstance(token, bytes) else token


async def acquire(
    core: Core, keeper: Keeper, grant_type: type[Held], name: str, timeout: Optional[float], wait: Optional[float], sleep: float, token: Optional[Token]
) -> Optional[Held]:
    """Acquires with a wait in seconds; None waits for ever. Without a timeout the lock is renewed until its release."""
    lease, renew = (float(timeout), False) if timeout else (_LEASE, True)
    if token is None:
        owner = uuid.uuid1().hex
        request = Request("lock", (name,), lease, math.inf if wait is None else wait, owner, renew=renew)
        return await _acquire.acquire(core, keeper, request, grant_type)
    # The same owner acquires a native lock again, and redis-py's lock does not: a second hold is given back.
    request = Request("lock", (name,), lease, None, text_of(token), renew=renew)
    end = math.inf if wait is None else now() + wait
    while True:
        info = await _calls.info(core, name)
        if not (info and any(holder.owner == request.owner for holder in info.holders)):
            held = await _acquire.acquire(core, keeper, request, grant_type)
            if held is not None:
                info = await _calls.info(core, name)
                if info is None or all(holder.owner != request.owner or holder.holds == 1 for holder in info.holders):
                    return held
                await _acquire.release(core, keeper, held)
        if now() + sleep > end:
            return None
        await core.world.pause(sleep)


async def release(core: Core, keeper: Keeper, name: str, token: bytes, grant: Optional[Held]) -> None:
    try:
        if grant is not None and not grant.released and grant.owner == text_of(token):
            await _acquire.release(core, keeper, grant)
        else:
            await core.ask("LOCK.RELEASE", name, text_of(token), "REQUEST", uuid.uuid4().hex, name=name)
    except errors.NotHeldError as error:
        raise LockNotOwnedError(f"Cannot release a lock that's no longer owned: {error.cause}", name) from error


async def extend(core: Core, name: str, token: bytes, grant: Optional[Held], seconds: float, replace: bool, doing: str) -> None:
    """Restarts the lease with these seconds, or with so many more than are left."""
    lease_ms = int(seconds * 1000)
    if not replace:
        left = int(await core.ask("PTTL", name))
        lease_ms += max(0, left)
    sent = now()
    try:
        left_ms = await core.ask("LOCK.RENEW", name, text_of(token), max(1, lease_ms), name=name)
    except errors.NotHeldError as error:
        raise LockNotOwnedError(f"Cannot {doing} a lock that's no longer owned: {error.cause}", name) from error
    if grant is not None:
        grant.deadline = sent + int(left_ms) / 1000


async def is_locked(core: Core, name: str) -> bool:
    return bool(await core.ask("EXISTS", name))


async def is_owned(core: Core, name: str, token: Optional[bytes]) -> bool:
    if token is None:
        return False
    (reply,) = await core.call([("LOCK.INFO", name)], until=now() + core.retry_for)
    if isinstance(reply, ResponseError):
        raise await core.error_of(reply, name)
    return reply is not None and any(holder["owner"] == text_of(token) for holder in reply.get("holders") or ())
