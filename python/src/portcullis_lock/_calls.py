"""The smaller operations of both interfaces, as coroutines of the core."""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Optional, Sequence, TypeVar, Union

from redis.exceptions import ResponseError

from portcullis_lock import _acquire, errors
from portcullis_lock import info as _info
from portcullis_lock._clock import now
from portcullis_lock._core import LATE, Backoff, Core
from portcullis_lock._held import Handle, Held
from portcullis_lock._keeper import Keeper
from portcullis_lock._link import BROKEN
from portcullis_lock._request import FAR, Request, ms, number

log = logging.getLogger("portcullis_lock")
H = TypeVar("H", bound=Handle)
K = TypeVar("K")


def names_of(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, (str, bytes)):
        raise TypeError(f"names is {names!r}; it must be a list of names")
    if len(set(names)) != len(names):
        raise ValueError(f"a name is given twice: {', '.join(names)}")
    return tuple(names)


def without_wait(request: Request) -> Request:
    return request if request.wait is None else dataclasses.replace(request, wait=None)


async def not_acquired(core: Core, keeper: Keeper, request: Request) -> errors.NotAcquiredError:
    """The error for a lock that was not granted. It says who holds it, and whether that is this process."""
    infos = []
    try:
        for name in request.names:
            infos.append(await info(core, name))
        text = _info.not_acquired(request.word, request.title, request.wait, infos)
        ours = {held.owner for held in keeper.live()}
        if any(info is not None and any(holder.owner in ours for holder in info.holders) for info in infos):
            text += ". That holder is in this process: to acquire again what is held already, give both the same owner=…"
    except (errors.LockError, *BROKEN) as error:
        text = f"the {request.word} '{request.title}' was not granted, and the server does not say who holds it: {error}"
    return errors.NotAcquiredError(text, request.title)


def leaving(entered: list[tuple[K, H]], key: K) -> H:
    """Takes out the grant that this thread or task has entered last. A `with` block can be left by another thread than the one that entered it, as
    web frameworks do; then it is the last one."""
    for index in range(len(entered) - 1, -1, -1):
        if entered[index][0] == key:
            return entered.pop(index)[1]
    return entered.pop()[1]


async def leave(core: Core, keeper: Keeper, held: Held, error: Optional[BaseException]) -> None:
    """Releases at the end of a `with` block. An error of the block is not hidden by one of the release. A forked child that leaves the block of its
    parent does nothing: the parent is still in it."""
    if not held.is_ours:
        return
    if error is None:
        await _acquire.release(core, keeper, held)
        return
    try:
        await _acquire.release(core, keeper, held)
    except (errors.LockError, *BROKEN) as failed:
        log.warning("after %s in the block: %s", type(error).__name__, failed)


async def release_all(core: Core, keeper: Keeper) -> None:
    """Releases what is still held. When the server cannot be reached, the rest ends with its leases."""
    grants = keeper.live()
    for position, held in enumerate(grants):
        try:
            await _acquire.release(core, keeper, held)
        except BROKEN as error:
            log.warning("%d grants could not be released; they end with their leases: %s", len(grants) - position, error)
            return
        except errors.LockError as error:
            log.warning("'%s' could not be released: %s", held.request.title, error)


async def renew(core: Core, keeper: Keeper, held: Held) -> float:
    held.refuse_if_copied()
    if held.released:
        raise errors.NotHeldError(f"the {held.request.word} '{held.request.title}' is released", "released", held.request.title)
    if held.cause is None:
        time = now()
        await keeper.renew([held], min(held.deadline, time + core.retry_for), core.patience_for(held.deadline - time))
        keeper.end_if_over(held)
    if held.cause is not None:
        raise errors.NotHeldError(f"the {held.request.word} '{held.request.title}' is lost: {held.cause}", held.cause, held.request.title)
    return held.remaining()


async def check(core: Core, held: Held) -> bool:
    held.refuse_if_copied()
    if held.released or held.cause is not None:
        return False
    commands = [("LOCK.CHECK", name, token) for name, token in zip(held.request.names, held.tokens)]
    replies = await core.call(commands, until=now() + core.retry_for)
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise await core.error_of(reply, held.request.title)
    # Whoever did not hear from the server in time is no holder, although the server may still have the grant.
    return all(replies) and held.is_held


async def latch_set(core: Core, name: str, count: int, ttl: Optional[float]) -> bool:
    tail = () if ttl is None else ("PX", ms(ttl, "ttl"))
    return bool(await core.ask("LATCH.SET", name, count, *tail, name=name))


async def latch_down(core: Core, name: str, by: int) -> int:
    return int(await core.ask("LATCH.DOWN", name, by, name=name, repeat=False))


async def latch_wait(core: Core, name: str, timeout: float) -> bool:
    seconds = number(timeout)
    if not seconds >= 0:
        raise ValueError(f"timeout is {timeout!r}; it is a number of seconds, or math.inf for ever")
    end, backoff = now() + (seconds if seconds <= FAR else math.inf), Backoff()
    while True:
        link = None
        try:
            link = await core.take(min(core.timeout, max(0.0, end - now()) + LATE), alone=True)
            left = max(0.0, end - now())
            # WAIT 0 waits for ever.
            wait_ms = 0 if math.isinf(left) else max(1, math.ceil(left * 1000))
            (reply,) = await core.exchange_waiting(link, [("LATCH.AWAIT", name, "WAIT", wait_ms)], left)
        except BROKEN as error:
            fresh = link is not None and core.broke(link, error)
            if core.is_final(error, timeout > 0) or now() >= end:
                raise
            if not fresh:
                await core.world.pause(backoff.next())
        except BaseException:
            if link is not None:
                core.abort(link)
            raise
        else:
            core.give(link)
            if isinstance(reply, ResponseError):
                raise await core.error_of(reply, name)
            return reply is not None


async def guard(core: Core, resource: str, token: Union[int, Handle]) -> None:
    await core.ask("LOCK.GUARD", resource, token if isinstance(token, int) else token.token, name=resource)


async def throttle(core: Core, name: str, max_burst: int, count: int, period: float, quantity: int) -> _info.Throttled:
    if period < 1 or period != int(period):
        raise ValueError(f"period is {period!r}; it must be a whole number of seconds")
    return _info.throttled(await core.ask("CL.THROTTLE", name, max_burst, count, int(period), quantity, name=name, repeat=False))


async def info(core: Core, name: str) -> Optional[_info.LockInfo]:
    return _info.lock_info(name, await core.ask("LOCK.INFO", name, name=name))


async def break_(core: Core, keeper: Keeper, name: str, token: int, reason: str) -> bool:
    try:
        await core.ask("LOCK.BREAK", name, "TOKEN", token, "REASON", reason, name=name)
    except errors.NotHeldError:
        return False
    # The server sends no push to the connection that breaks it, which may be the one that acquired it.
    keeper.pushed(["lock-lost", name, "", token, "broken"])
    return True


async def ping(core: Core) -> str:
    # LOCK.CHECK exists where native locks do, and changes nothing.
    await core.ask("LOCK.CHECK", "ping", 1)
    return f"Portcullis at {core.target}"
