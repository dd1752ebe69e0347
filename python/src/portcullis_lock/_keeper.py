"""Keeps grants: renews them at a third of their lease, in pipelines, and notices their loss.

    keep ─▶ heap by the time of the next look ─▶ round: renew what is due, on one connection
                                                  │ NOTHELD, or the lease's end on the local clock ─▶ lost
    lock-lost push, end of a session's connection ┘

There is one keeper for each `connect`. `step` does what is due, and says when it is to be called next; a thread or a task calls it.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
from typing import Any, Callable, Coroutine, Iterable, Optional, Sequence

from redis.exceptions import ResponseError

from portcullis_lock import errors
from portcullis_lock._clock import now
from portcullis_lock._core import Core
from portcullis_lock._held import Held
from portcullis_lock._link import BROKEN, Link
from portcullis_lock._request import Command, Request

log = logging.getLogger("portcullis_lock")

# Grants that are due within so many seconds are renewed together.
_TOGETHER = 0.02
# Renewals in one pipeline.
_PIPELINE = 1000
# Seconds between two attempts to take over a session, or to withdraw a request.
_RETRY = 0.05
_REASONS = {
    "lease": "its lease ended",
    "deleted": "its key was deleted, or the database was flushed",
    "maxhold": "it was held for as long as max_hold allows",
    "broken": "an administrator broke it; LOCK.WHY says who and why",
    "session": "its session ended",
}


class Keeper:
    """What it does is the same for threads and asyncio; `wake` and `start` are theirs."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._heap: list[tuple[float, int, Held]] = []
        self._numbers = itertools.count()
        self._dead = 0
        """Entries of the heap whose grants are released or have another time now."""
        self._by_token: dict[int, list[Held]] = {}
        self._nested: dict[tuple[str, str], list[Held]] = {}
        """Grants of owners that the caller has named, by lock and owner."""
        self._orphans: list[tuple[float, Callable[[], Coroutine[Any, Any, None]]]] = []
        self._ended_sessions: list[Held] = []
        self._next = math.inf
        """When the next step is planned."""

    def start(self) -> None:
        """Has `step` called from now on, if it is not already."""
        raise NotImplementedError

    def wake(self) -> None:
        """Has `step` called at once."""
        raise NotImplementedError

    # Grants come and go

    def keep(self, held: Held) -> None:
        """Begins to renew and to watch a grant."""
        with self._lock:
            for token in held._tokens:
                self._by_token.setdefault(token, []).append(held)
            if held.request.owner is not None:
                for name in held.request.names:
                    self._nested.setdefault((name, held.owner), []).append(held)
            self._plan(held, now())
            is_sooner = held.due < self._next
            if is_sooner:
                self._next = held.due
        self.start()
        if is_sooner:
            self.wake()

    def drop(self, held: Held) -> bool:
        """Stops keeping a grant. Returns False if that was done before."""
        with self._lock:
            if held.released:
                return False
            held.released = True
            self._dead += 1
            for token in held._tokens:
                others = self._by_token.get(token)
                if others is not None:
                    if len(others) == 1:
                        del self._by_token[token]
                    elif held in others:
                        others.remove(held)
            if held.request.owner is not None:
                for name in held.request.names:
                    others = self._nested.get((name, held.owner), [])
                    if held in others:
                        others.remove(held)
                    if not others:
                        self._nested.pop((name, held.owner), None)
            if self._dead > 100 and self._dead * 2 > len(self._heap):
                self._heap = [entry for entry in self._heap if not entry[2].released and entry[0] == entry[2].due]
                heapq.heapify(self._heap)
                self._dead = 0
            return True

    def is_nested(self, request: Request, owner: str) -> bool:
        """Whether this owner already holds one of the names."""
        return request.owner is not None and any((name, owner) in self._nested for name in request.names)

    def longest_lease_ms(self, request: Request, owner: str) -> Optional[int]:
        """The longest lease of an owner's grants, if it is longer than this request's. They share one lease, and nobody may shorten it."""
        if request.owner is None:
            return None
        with self._lock:
            leases = [held.request.lease_ms for name in request.names for held in self._nested.get((name, owner), ())]
        longest = max(leases, default=0)
        return longest if longest > request.lease_ms else None

    def orphan(self, withdraw: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Withdraws a request later that was given up while the server could not be reached."""
        with self._lock:
            self._orphans.append((now() + _RETRY, withdraw))
        self.start()
        self.wake()

    def abandon(self) -> None:
        """Stops keeping all grants, without releasing them."""
        for held in self.live():
            self.drop(held)
            if held.link is not None:
                self._core.abort(held.link)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is kept."""
        return not self._by_token and not self._orphans

    def live(self) -> list[Held]:
        """The grants that are kept."""
        with self._lock:
            return list({id(held): held for others in self._by_token.values() for held in others}.values())

    def _plan(self, held: Held, time: float) -> None:
        """Plans the next look at a grant. The lock is held."""
        if held.request.renew:
            left = held.deadline - time
            held.due = time + max(0.001, left - held.request.unrenewed * 2 / 3)
        else:
            held.due = held.deadline
        heapq.heappush(self._heap, (held.due, next(self._numbers), held))

    def _plan_retry(self, held: Held, time: float) -> None:
        """Plans the next attempt after one that failed: a twentieth of the lease later, and when the lease ends."""
        pause = min(max(held.request.lease / 20, 0.005), 1.0)
        held.due = min(held.deadline, time + pause)
        heapq.heappush(self._heap, (held.due, next(self._numbers), held))

    # Losses

    def pushed(self, push: Any) -> None:
        """Takes a push of the server: `lock-lost`, name, owner, token, reason."""
        if not isinstance(push, list) or len(push) < 5:
            return
        words = [word.decode(errors="replace") if isinstance(word, bytes) else word for word in push]
        if words[0] == "lock-lost":
            for held in list(self._by_token.get(int(words[3]), ())):
                self.lose(held, _REASONS.get(str(words[4]), str(words[4])))

    def lose(self, held: Held, cause: str) -> None:
        """Records that a grant is lost."""
        if not held.released:
            held.end(cause)

    def session_ended(self, held: Held) -> None:
        """The connection of a session has ended; another one takes the session over."""
        with self._lock:
            self._ended_sessions.append(held)

    # The work

    async def step(self) -> float:
        """Does what is due. Returns seconds until it has to be called again; math.inf if nothing is kept."""
        due = self._due()
        for start in range(0, len(due), _PIPELINE):
            await self._renew_due(due[start : start + _PIPELINE])
        await self._take_over_sessions()
        await self._withdraw_orphans()
        with self._lock:
            while self._heap and (self._heap[0][2].released or self._heap[0][0] != self._heap[0][2].due):
                heapq.heappop(self._heap)
                self._dead = max(0, self._dead - 1)
            next_due = self._heap[0][0] if self._heap else math.inf
            time = now()
            if self._orphans or self._ended_sessions:
                next_due = min(next_due, time + _RETRY)
            # A step that was planned is kept, also when its grants are released: the next grants then need not wake the keeper.
            if self._next > time:
                next_due = min(next_due, self._next)
            self._next = next_due
            return max(0.0, next_due - time)

    def _due(self) -> list[Held]:
        """The grants to renew now. Those whose lease has ended are lost."""
        due: list[Held] = []
        ended: list[Held] = []
        with self._lock:
            time = now()
            while self._heap and self._heap[0][0] <= time + (_TOGETHER if due else 0.0):
                planned, _, held = heapq.heappop(self._heap)
                if held.released or planned != held.due:
                    self._dead = max(0, self._dead - 1)
                elif held.cause is not None:
                    held.due = math.inf
                elif time >= held.deadline:
                    held.due = math.inf
                    ended.append(held)
                else:
                    due.append(held)
        for held in ended:
            self.lose(held, "its lease ended" if not held.request.renew else "its lease ended before a renewal reached the server")
        return due

    async def _renew_due(self, due: Sequence[Held]) -> None:
        with self._lock:
            others = self._heap[0][0] if self._heap else math.inf
        time = now()
        # A server that does not answer must not hold up the news of other grants' ends.
        timeout = min(self._core.timeout, max(0.05, min(held.deadline for held in due) - time), max(0.25, others - time))
        try:
            await self.renew([held for held in due if held.request.renew], time, timeout)
        except BROKEN as error:
            log.debug("%d renewals have failed, and are repeated until the leases end: %s", len(due), error)
            with self._lock:
                for held in due:
                    self._plan_retry(held, now())
            return
        with self._lock:
            time = now()
            for held in due:
                if held.cause is None and not held.released:
                    # A max_hold can leave less than a lease. A refusal other than NOTHELD may leave nothing to wait for.
                    pause = min(held.deadline - time, held.request.unrenewed) / 3
                    held.due = min(held.deadline, time + max(pause, 0.005))
                    heapq.heappush(self._heap, (held.due, next(self._numbers), held))

    async def renew(self, grants: Sequence[Held], until: float, timeout: Optional[float] = None) -> None:
        """Renews grants in one pipeline, and moves their deadlines. Those that are not held any more are lost. Raises one of BROKEN."""
        commands: list[Command] = []
        for held in grants:
            lease_ms = self.longest_lease_ms(held.request, held.owner) or held.request.lease_ms
            commands += (held.request.renewal(name, held.owner, token, lease_ms) for name, token in zip(held.request.names, held._tokens))
        if not commands:
            return
        sent = now()
        replies = iter(await self._core.call(commands, until=until, timeout=timeout, urgent=True))
        for held in grants:
            await self._renewed(held, [next(replies) for _ in held.request.names], sent)

    async def _renewed(self, held: Held, replies: Iterable[Any], sent: float) -> None:
        left_ms = math.inf
        for reply in replies:
            if isinstance(reply, ResponseError):
                error = errors.from_reply(reply, held.request.title)
                if isinstance(error, errors.NotHeldError):
                    self.lose(held, error.cause)
                else:
                    log.warning("'%s' is not renewed: %s", held.request.title, error)
                return
            left_ms = min(left_ms, int(reply))
        held.deadline = sent + left_ms / 1000

    async def _withdraw_orphans(self) -> None:
        with self._lock:
            time = now()
            due = [withdraw for at, withdraw in self._orphans if at <= time]
            self._orphans = [entry for entry in self._orphans if entry[0] > time]
        for withdraw in due:
            await withdraw()

    async def _take_over_sessions(self) -> None:
        with self._lock:
            ended, self._ended_sessions = self._ended_sessions, []
        for held in ended:
            if held.released or held.cause is not None or held.session is None:
                continue
            if now() >= held.deadline:
                self.lose(held, "its lease ended before its session could be taken over by a new connection")
                continue
            link: Optional[Link] = None
            try:
                link = await self._core.take(min(self._core.timeout, 1.0))
                grace_ms = math.ceil(held.request.grace * 1000)
                (grants,) = await self._core.exchange(link, [("LOCK.SESSION", held.session, "GRACE", grace_ms)], min(self._core.timeout, 1.0))
            except BROKEN as error:
                log.debug("the session of '%s' is not taken over yet: %s", held.request.title, error)
                if link is not None:
                    self._core.broke(link)
                self.session_ended(held)
                continue
            if isinstance(grants, int) and grants > 0:
                held.link = link
                self.watch_session(held, link)
            else:
                self._core.abort(link)
                self.lose(held, "its session ended: the connection was lost for longer than its grace")

    def acquired_on(self, link: Link) -> None:
        """Watches a connection that has acquired a grant, while nobody uses it."""
        raise NotImplementedError

    def watch_session(self, held: Held, link: Link) -> None:
        """Watches the connection of a session."""
        raise NotImplementedError
