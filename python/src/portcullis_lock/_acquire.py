"""Acquires and releases.

An acquisition has a request id. When its connection breaks it asks again with the same id over a new connection: the server then returns the
grant that the first attempt led to, or lets the new connection take the place in the queue. When the caller goes away (KeyboardInterrupt,
cancellation), the connection is closed, and a last attempt with the same id that does not wait takes the place out of the queue, or gets the
grant that raced in, which is then released. So the server is asked what became of the request, whatever the order in which it learns of things.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Optional, TypeVar

from redis.exceptions import ResponseError

from portcullis_lock import errors
from portcullis_lock._clock import now
from portcullis_lock._core import LATE, Backoff, Core
from portcullis_lock._held import Handle, Held
from portcullis_lock._link import BROKEN, Link
from portcullis_lock._keeper import Keeper
from portcullis_lock._request import Command, Request

log = logging.getLogger("portcullis_lock")
G = TypeVar("G", bound=Handle)

# Seconds that a caller who goes away waits for each reply of its withdrawal.
_WITHDRAW_TIMEOUT = 1.0
# How often a wait that ended long before its time is begun again: a late copy of the request can end it, and so does CLIENT UNBLOCK.
_EARLY_ENDS_MAX = 3


async def acquire(core: Core, keeper: Keeper, request: Request, grant_type: Callable[[Held], G]) -> Optional[G]:
    """Acquires. Returns None if it was not granted within the wait. Raises LockError, or one of BROKEN."""
    begun = now()
    wait = request.wait or 0.0
    while True:
        held = await _Attempts(core, keeper, request, begun + wait).run()
        if held is None:
            return None
        if not await _is_ended_meanwhile(core, keeper, held):
            # The keeper may have no grant whose handle nobody has: a KeyboardInterrupt can come at any moment.
            grant = grant_type(held)
            try:
                _keep(keeper, held)
            except GeneratorExit:
                raise
            except BaseException:
                # The keeper's thread cannot be started, for instance.
                await core.world.finish(_give_back(core, keeper, held))
                raise
            return grant
        keeper.discard(held)
        if now() >= begun + wait:
            return None


async def _is_ended_meanwhile(core: Core, keeper: Keeper, held: Held) -> bool:
    """Whether the grant has ended before its reply arrived."""
    if held.is_uncertain:
        # The lease may have begun long after the request was sent, and an earlier attempt may have begun it. A renewal says what is left.
        try:
            await keeper.renew([held], now() + core.retry_for)
        except BROKEN as error:
            log.debug("the first renewal of '%s' failed: %s", held.request.title, error)
        except BaseException:
            await core.world.finish(_give_back(core, keeper, held))
            raise
        held.is_uncertain = False
    return held.cause is not None


def _keep(keeper: Keeper, held: Held) -> None:
    """Begins to renew a grant, and to hear of its loss."""
    keeper.keep(held)
    if held.link is not None:
        keeper.watch_session(held, held.link)
    elif held.home is not None:
        keeper.acquired_on(held.home)


async def _give_back(core: Core, keeper: Keeper, held: Held) -> None:
    try:
        await release(core, keeper, held)
    except (errors.LockError, *BROKEN) as error:
        log.warning("'%s' could not be released; it ends with its lease: %s", held.request.title, error)


class _Attempts:
    """One request over all its attempts."""

    def __init__(self, core: Core, keeper: Keeper, request: Request, end: float) -> None:
        self._core, self._keeper, self._request = core, keeper, request
        unique, self._request_id = core.names()
        self._owner = request.owner or unique
        self._session = self._request_id if request.session else None
        self._end = end
        """End of the wait."""
        self._give_up = end + LATE if request.wait else now() + core.retry_for
        """When a request whose fate is unknown is given up."""
        self._is_unknown = False
        """Whether an attempt may have been carried out whose reply was lost."""
        self._first_sent = 0.0
        """When the first such attempt was sent: the lease may count from then."""
        self._is_told = False
        """Whether it is logged that the server cannot be reached."""

    def _command(self, wait: float) -> Command:
        lease_ms = self._keeper.longest_lease_ms(self._request, self._owner)
        return self._request.acquire(self._owner, self._request_id, wait, lease_ms)

    def _commands(self, wait: float) -> list[Command]:
        if self._session is None:
            return [self._command(wait)]
        return [("LOCK.SESSION", self._session, "GRACE", self._request.grace_ms), self._command(wait)]

    async def run(self) -> Optional[Held]:
        core, request = self._core, self._request
        backoff, early_ends = Backoff(), 0
        while True:
            link: Optional[Link] = None
            wait = max(0.0, self._end - now()) if request.wait else 0.0
            # An attempt to connect, or to ask what has become of the request, must not last for longer than the rest of the time.
            timeout = min(core.timeout, max(0.05, self._give_up - now())) if request.wait else core.timeout
            sent = now()
            try:
                if wait > 0:
                    link = await core.take(timeout, alone=True, for_session=self._session is not None)
                    sent = now()
                    # What connecting took is no more to wait for.
                    wait = max(0.001, self._end - sent)
                    replies = await core.exchange_waiting(link, self._commands(wait), wait)
                else:
                    async with core.world.turn():
                        link = await core.take(timeout, for_session=self._session is not None)
                        sent = now()
                        replies = await core.exchange(link, self._commands(wait), timeout)
            except BROKEN as error:
                fresh = False
                if link is not None:
                    if not self._is_unknown:
                        self._first_sent = sent
                    self._is_unknown = True
                    fresh = core.broke(link, error)
                if core.is_final(error, bool(request.wait)) or not self._may_go_on():
                    if self._is_unknown:
                        self._keeper.orphan(self._withdraw)
                    raise
                if not core.has_connected and not self._is_told:
                    self._is_told = True
                    log.warning("the request for '%s' is tried again until its wait ends: %s", request.title, error)
                if not fresh:
                    await self._pause(backoff.next())
                continue
            except GeneratorExit:
                # The event loop is gone, so nothing can be sent.
                if link is not None:
                    core.abort(link)
                raise
            except BaseException:
                if link is not None:
                    core.abort(link)
                    await core.world.finish(self._withdraw())
                raise
            refused = next((reply for reply in replies if isinstance(reply, ResponseError)), None)
            if refused is not None:
                self._let_go(link)
                error_of = await core.error_of(refused, request.title)
                if isinstance(error_of, errors.NotHeldError):
                    # An earlier attempt was granted, and that grant has ended since. The next attempt is a new request.
                    _, self._request_id = core.names()
                    self._is_unknown = False
                    continue
                raise error_of
            tokens = request.tokens(replies[-1])
            if tokens is None:
                self._let_go(link)
                # A late copy of the request, on a connection that was given up, has taken the place in the queue. Take it back.
                if self._is_unknown and wait > 0 and now() - sent < wait * 7 / 8 and early_ends < _EARLY_ENDS_MAX:
                    early_ends += 1
                    continue
                return None
            return self._granted(link, tokens, sent)

    def _granted(self, link: Link, tokens: tuple[int, ...], sent: float) -> Held:
        request = self._request
        waited = now() - sent
        held = Held(request, self._owner, self._request_id, tokens, self._first_sent if self._is_unknown else sent)
        held.is_uncertain = self._is_unknown or waited > request.unrenewed / 3 or self._keeper.is_nested(request, self._owner)
        if self._session is None:
            self._keeper.lives_on(held, link)
            self._core.give(link)
        else:
            held.session, held.link = self._session, link
        return held

    def _may_go_on(self) -> bool:
        time = now()
        return time < self._end or (time < self._give_up and (self._is_unknown or not self._request.wait))

    def _let_go(self, link: Link) -> None:
        # A connection with a session of a name keeps it, so nobody else may use it.
        if self._session is None:
            self._core.give(link)
        else:
            self._core.abort(link)

    async def _pause(self, seconds: float) -> None:
        try:
            await self._core.world.pause(seconds)
        except GeneratorExit:
            raise
        except BaseException:
            if self._is_unknown:
                await self._core.world.finish(self._withdraw())
            raise

    async def _withdraw(self) -> None:
        """Takes the request out of the queue, or releases what it was granted."""
        core = self._core
        until = now() + _WITHDRAW_TIMEOUT
        try:
            (reply,) = await core.call([self._command(0.0)], until=until, timeout=_WITHDRAW_TIMEOUT)
            if isinstance(reply, ResponseError):
                return  # Nothing is held: NOTHELD, or the request was refused.
            tokens = self._request.tokens(reply)
            if tokens is None:
                return
            releases = releases_of(self._request, self._owner, tokens, self._request_id)
            replies = await core.call(releases, until=until, timeout=_WITHDRAW_TIMEOUT)
            if self._session is not None:
                await core.call([("LOCK.SESSION", self._session, "END")], until=until, timeout=_WITHDRAW_TIMEOUT)
            log.debug("'%s' was granted to a caller that has gone, and is released: %s", self._request.title, replies)
        except (*BROKEN, errors.LockError) as error:
            log.warning("the request for '%s' could not be withdrawn; a grant would end with its lease: %s", self._request.title, error)


def releases_of(request: Request, owner: str, tokens: tuple[int, ...], request_id: str) -> list[Command]:
    return [request.release(name, owner, token, f"{request_id}/r") for name, token in zip(request.names, tokens)]


async def release(core: Core, keeper: Keeper, held: Held) -> None:
    """Releases a grant. The first call does; later ones do nothing. Raises NotHeldError if the grant has ended before."""
    held.refuse_if_copied()
    try:
        # It is renewed until it has its turn.
        async with core.world.turn():
            await _release(core, keeper, held)
    except GeneratorExit:
        raise
    except BaseException:
        if not held.released:
            await core.world.finish(_give_back(core, keeper, held))
        raise


async def _release(core: Core, keeper: Keeper, held: Held) -> None:
    if not keeper.drop(held):
        return
    cause = held.cause
    if cause is None:
        commands = releases_of(held.request, held.owner, held.tokens, held.request_id)
        if held.session is not None:
            commands.append(("LOCK.SESSION", held.session, "END"))
        # After the lease there is nothing to release.
        until = min(now() + core.release_for, held.lease_end)
        try:
            replies = await core.call(commands, until=until, urgent=True)
        except GeneratorExit:
            raise
        except BROKEN:
            raise
        except BaseException:
            # The caller is cancelled. The release has its request id, so it can be sent again.
            await core.world.finish(_repeat_release(core, commands, held))
            raise
        finally:
            if held.link is not None:
                core.abort(held.link)
                held.link = None
        cause = await _refusal(core, held, replies)
    else:
        if now() < held.lease_end:
            await _release_rest(core, held)
        if held.link is not None:
            core.abort(held.link)
            held.link = None
    if cause is not None:
        raise errors.NotHeldError(f"the {held.request.word} '{held.request.title}' ended before its release: {cause}", cause, held.request.title)


async def _release_rest(core: Core, held: Held) -> None:
    """Releases what the server may still have of a lost grant: others of several locks, the margin of a lease, or a grant whose session has moved to
    another leader without its connection. It is tried once."""
    commands = releases_of(held.request, held.owner, held.tokens, held.request_id)
    if held.session is not None:
        commands.append(("LOCK.SESSION", held.session, "END"))
    try:
        await core.call(commands, until=now(), timeout=_WITHDRAW_TIMEOUT, urgent=True)
    except BROKEN as error:
        log.debug("'%s' ends with its lease: %s", held.request.title, error)


async def _refusal(core: Core, held: Held, replies: list[Any]) -> Optional[str]:
    """Why the server refused a release."""
    cause = None
    for reply in replies:
        if isinstance(reply, ResponseError):
            error = await core.error_of(reply, held.request.title)
            if not isinstance(error, errors.NotHeldError):
                raise error
            cause = errors.cause_of(error) if now() < held.lease_end else error.cause
            held.end(cause)
    return cause


async def _repeat_release(core: Core, commands: list[Command], held: Held) -> None:
    try:
        await core.call(commands, until=now() + _WITHDRAW_TIMEOUT, timeout=_WITHDRAW_TIMEOUT)
    except BROKEN as error:
        log.warning("'%s' could not be released; it ends with its lease: %s", held.request.title, error)
