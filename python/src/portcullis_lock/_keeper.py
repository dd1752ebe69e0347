"""Keeps grants: renews them at a third of their lease, in pipelines, and notices their loss.

    keep ─┬▶ heap by the time of the next look ─▶ step: renew what is due, on one connection
          │  the connection it lives on has closed ─▶ now ─┘   │ NOTHELD ─▶ lost
          │  lock-lost push ─▶ ask the server why ─────────────┘
          └▶ heap by the deadline ─▶ end_leases: nobody has answered in time ─▶ lost

A grant lives on a connection: the one that the server sends its loss to. That is the one that acquired it, and when that has closed, the one that
renews it next. A session has a connection of its own. Another one takes it over when that has closed, and when another node leads.

There is one keeper for each `connect`. `step` does what is due, and says when it is to be called next; a thread or a task calls it. `end_leases` does
no I/O, and a thread or a timer of its own calls it: `step` may be waiting for a server that does not answer.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
from collections import deque
from typing import Any, Callable, Coroutine, Iterable, Optional, Sequence

from redis.exceptions import ResponseError

from portcullis_lock import _process, errors
from portcullis_lock._clock import now
from portcullis_lock._core import Core
from portcullis_lock._held import Held
from portcullis_lock._link import BROKEN, Link
from portcullis_lock._request import Command, Request
from portcullis_lock._target import Target

log = logging.getLogger("portcullis_lock")

# Grants that are due within so many seconds are renewed together.
_TOGETHER = 0.02
# Renewals in one pipeline.
_PIPELINE = 1000
# Seconds between two attempts to take over a session, or to withdraw a request.
_RETRY = 0.05
# Seconds between two attempts to renew a grant whose connection has closed.
_MOVE_RETRY = 0.2
# Seconds after which the take-overs of sessions and the withdrawals wait for the next step: renewals may be due.
_SHARE = 0.25
# Seconds that the server has to say why a grant has ended.
_WHY_TIMEOUT = 0.5
# The reasons of the push `lock-lost`, where the server says no more.
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
        # Re-entrant: a signal handler may release a lock while the main thread is in here. What it changes meanwhile is found.
        self._lock = threading.RLock()
        core.on_closed = self._closed
        core.on_leader = self._led_by
        self._begin()
        _process.register(self)

    def _begin(self) -> None:
        self._heap: list[tuple[float, int, Held]] = []
        self._numbers = itertools.count()
        self._planned = 0
        """How many entries the heap has had."""
        self._dead = 0
        """Entries of the heap whose grants are released or have another time now."""
        self._ends: list[tuple[float, int, Held]] = []
        """Each grant that is kept, by its deadline or an earlier one of it."""
        self._dead_ends = 0
        """Entries of `_ends` whose grants are released."""
        self._first_end = math.inf
        """When `end_leases` is called next."""
        self._by_token: dict[int, list[Held]] = {}
        self._nested: dict[tuple[str, str], list[Held]] = {}
        """Grants of owners that the caller has named, by lock and owner."""
        self._orphans: list[tuple[float, Callable[[], Coroutine[Any, Any, None]]]] = []
        self._ended_sessions: list[Held] = []
        self._pushed: deque[Held] = deque()
        """Lost grants of which the server is to say more."""
        self._forgotten: deque[Held] = deque()
        """Grants whose handles were collected since the last step."""
        self._next = math.inf
        """When the next step is planned."""

    def forked(self) -> None:
        """Forgets everything in a forked child: grants and connections are its parent's."""
        self._lock = threading.RLock()
        self._begin()
        self._core.forked()

    @property
    def target(self) -> Target:
        """Where its server is."""
        return self._core.target

    def start(self) -> None:
        """Has `step` called from now on, if it is not already."""
        raise NotImplementedError

    def wake(self) -> None:
        """Has `step` called at once."""
        raise NotImplementedError

    def watch_ends(self) -> None:
        """Has `end_leases` called at `_first_end`, which is earlier than before."""
        raise NotImplementedError

    @property
    def is_watching_ends(self) -> bool:
        """Whether it will be called, if nothing has ended that."""
        raise NotImplementedError

    # Grants come and go

    def keep(self, held: Held) -> None:
        """Begins to renew and to watch a grant."""
        with self._lock:
            for token in held.tokens:
                self._by_token.setdefault(token, []).append(held)
            if held.request.owner is not None:
                for name in held.request.names:
                    self._nested.setdefault((name, held.owner), []).append(held)
            if held.home is not None and not held.home.is_open:
                held.home = None
            if _has_home(held):
                self._plan(held, now())
            else:
                self._plan_at(held, now())
            is_sooner = held.due < self._next
            if is_sooner:
                self._next = held.due
            is_first = self._plan_end(held)
        self.start()
        if is_first or not self.is_watching_ends:
            self.watch_ends()
        if is_sooner:
            self.wake()

    def drop(self, held: Held) -> bool:
        """Stops keeping a grant. Returns False if that was done before."""
        with self._lock:
            if held.released:
                return False
            held.released = True
            held.pinned = None
            self._dead += 1
            self._dead_ends += 1
            if held.home is not None:
                held.home.grants -= 1
                held.home = None
            for token in held.tokens:
                others = self._by_token.get(token)
                if others is not None:
                    if held in others:
                        others.remove(held)
                    if not others:
                        del self._by_token[token]
            if held.request.owner is not None:
                for name in held.request.names:
                    others = self._nested.get((name, held.owner), [])
                    if held in others:
                        others.remove(held)
                    if not others:
                        self._nested.pop((name, held.owner), None)
            if self._dead > 100 and self._dead * 2 > len(self._heap):
                self._forget_dead()
            if self._dead_ends > 100 and self._dead_ends * 2 > len(self._ends):
                self._ends = [(held.deadline, next(self._numbers), held) for held in self.live()]
                heapq.heapify(self._ends)
                self._dead_ends = 0
            return True

    def _forget_dead(self) -> None:
        """Takes dead entries out of the heap. The lock is held."""
        planned = -1
        # A signal handler may plan a grant meanwhile.
        while planned != self._planned:
            planned = self._planned
            self._heap[:] = sorted((held.due, next(self._numbers), held) for held in self.live() if held.due < math.inf)
        self._dead = 0

    def lives_on(self, held: Held, link: Link) -> None:
        """The server sends the loss of this grant to that connection, unless it has closed."""
        with self._lock:
            if link.is_open and not held.released:
                held.home = link
                link.grants += 1

    def _closed(self, link: Link) -> None:
        """A connection has closed. The grants that live on it move to another one, by a renewal."""
        if self._core.closed:
            return
        with self._lock:
            if not link.grants:
                return
            link.grants = 0
            # The server, too, learns of the end first.
            time = now() + _TOGETHER
            for held in self.live():
                if held.home is not link:
                    continue
                held.home = None
                if held.cause is None:
                    self._dead += 1
                    self._plan_at(held, time)
            self._next = min(self._next, time)
        self.wake()

    def forget(self, held: Held) -> None:
        """The handle of a grant was collected without a release. Takes no lock, since a collection can begin anywhere, and wakes nobody: the next
        step is in time."""
        held.is_forgotten = True
        self._forgotten.append(held)

    def _let_forgotten_go(self) -> None:
        """Ends the renewing of grants whose handles were collected. What is lost already is dropped."""
        while self._forgotten:
            held = self._forgotten.popleft()
            if held.released or held.cause is not None:
                self.discard(held)
            elif held.request.renew:
                log.warning("the %s '%s' was not released, and nothing refers to its grant: it ends with its lease", held.request.word, held.request.title)
                with self._lock:
                    self._dead += 1
                    self._plan_at(held, held.deadline)

    def discard(self, held: Held) -> None:
        """Stops keeping a grant that has ended, and closes the connection of its session."""
        if self.drop(held) and held.link is not None:
            self._core.abort(held.link)

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
            return list({id(held): held for others in list(self._by_token.values()) for held in others}.values())

    def _plan(self, held: Held, time: float) -> None:
        """Plans the next look at a grant. The lock is held."""
        if _is_renewed(held):
            left = held.deadline - time
            self._plan_at(held, time + max(0.001, left - held.request.unrenewed * 2 / 3))
        else:
            self._plan_at(held, held.deadline)

    def _plan_at(self, held: Held, time: float) -> None:
        """The same at a given time."""
        held.due = time
        self._planned += 1
        heapq.heappush(self._heap, (time, next(self._numbers), held))

    def _plan_retry(self, held: Held, time: float) -> None:
        """Plans the next attempt after one that failed: a twentieth of the lease later, and when the lease ends."""
        pause = min(max(held.request.lease / 20, 0.005), 1.0 if _has_home(held) else _MOVE_RETRY)
        self._plan_at(held, min(held.deadline, time + pause))

    # Ends of leases

    def _plan_end(self, held: Held) -> bool:
        """Has `end_leases` look at a grant at its deadline. Returns whether that is sooner than its next call. The lock is held."""
        heapq.heappush(self._ends, (held.deadline, next(self._numbers), held))
        if held.deadline >= self._first_end:
            return False
        self._first_end = held.deadline
        return True

    def answered(self, held: Held, sent: float, left: float) -> bool:
        """The server has answered a request about a grant, with the seconds that are left of its lease. Returns whether it is still held: an answer that
        comes after the deadline is too late, since the holder has stopped by then."""
        with self._lock:
            before = held.deadline
            if now() >= before and not held.is_uncertain:
                is_late, is_first = True, False
            else:
                is_late = False
                held.answered(sent, left)
                is_first = held.deadline < before and self._plan_end(held)
        if is_late:
            self._lose_ended(held)
        elif is_first:
            self.watch_ends()
        return not is_late

    def _detach(self, held: Held) -> None:
        """The connection of a session was seen to end. Its grants are lost with the grace, unless another connection takes it over before."""
        with self._lock:
            held.detach(now())
            is_first = self._plan_end(held)
        if is_first:
            self.watch_ends()

    def end_leases(self) -> float:
        """Tells of the loss of the grants whose deadlines have passed. Returns seconds until it has to be called again; math.inf if nothing is kept."""
        ended: list[Held] = []
        with self._lock:
            time = now()
            while self._ends and (self._ends[0][0] <= time or self._ends[0][2].released):
                planned, _, held = heapq.heappop(self._ends)
                if held.released:
                    self._dead_ends = max(0, self._dead_ends - 1)
                elif held.cause is None and held.deadline > time:
                    heapq.heappush(self._ends, (held.deadline, next(self._numbers), held))
                elif held.cause is None:
                    ended.append(held)
            self._first_end = self._ends[0][0] if self._ends else math.inf
            pause = max(0.0, self._first_end - time)
        for held in ended:
            self._lose_ended(held)
        return pause

    def _lose_ended(self, held: Held) -> None:
        """A grant is lost because its deadline has passed."""
        if held.pushed is not None:
            self.lose(held, _REASONS.get(held.pushed[1], held.pushed[1]))
        elif held.deadline >= held.detached_until:
            self.lose(held, "its session ended: the connection was lost for longer than its grace")
        else:
            self.lose(held, "its lease ended before a renewal reached the server" if _is_renewed(held) else "its lease ended")

    def end_if_over(self, held: Held) -> None:
        """Tells of the loss of a grant now, if its deadline has passed."""
        if held.cause is None and not held.released and now() >= held.deadline:
            self._lose_ended(held)

    # Losses

    def pushed(self, push: Any) -> None:
        """Takes a push of the server: `lock-lost`, name, owner, token, reason. The server is then asked for more."""
        if not isinstance(push, list) or len(push) < 5:
            return
        words = [word.decode(errors="replace") if isinstance(word, bytes) else word for word in push]
        if words[0] == "lock-lost":
            for held in list(self._by_token.get(int(words[3]), ())):
                self.ended(held, str(words[1]), str(words[4]))

    def ended(self, held: Held, name: str, reason: str) -> None:
        """The server has ended a grant of this name. Its loss is told when the server has said why, or says nothing."""
        if held.released or held.cause is not None:
            return
        held.pushed = (name, reason)
        self._pushed.append(held)
        self.start()
        self.wake()

    async def ask_why(self) -> None:
        """Asks why grants have ended of which the server has sent a push, and tells of their loss."""
        lost: list[Held] = []
        while self._pushed:
            lost.append(self._pushed.popleft())
        asked: list[tuple[Held, Command]] = []
        for held in lost:
            name, reason = held.pushed or ("", "")
            at = held.request.names.index(name) if name in held.request.names else -1
            # The server's answer is about the lease then.
            if held.cause is None and not held.released and reason != "maxhold" and at >= 0:
                asked.append((held, held.request.question(name, held.owner, held.tokens[at])))
        try:
            if asked:
                commands = [command for _, command in asked]
                replies = await self._core.call(commands, until=now() + _WHY_TIMEOUT, timeout=min(self._core.timeout, _WHY_TIMEOUT), urgent=True)
                for (held, _), reply in zip(asked, replies):
                    error = errors.from_reply(reply) if isinstance(reply, ResponseError) else None
                    if isinstance(error, errors.NotHeldError):
                        self.lose(held, errors.cause_of(error))
        except (errors.LockError, *BROKEN) as error:
            log.debug("the server does not say why %d grants have ended: %s", len(asked), error)
        finally:
            for held in lost:
                reason = (held.pushed or ("", ""))[1]
                self.lose(held, _REASONS.get(reason, reason))

    def lose(self, held: Held, cause: str) -> None:
        """Records that a grant is lost."""
        if not held.released:
            held.end(cause)
            if held.is_forgotten:
                self.discard(held)

    def session_ended(self, held: Held, link: Link) -> None:
        """The connection of a session has ended; another one takes the session over."""
        if held.link is not link or held.cause is not None or held.released:
            return
        self._detach(held)
        self._take_over_soon([held])

    def _led_by(self, address: str) -> None:
        """The node at this address leads. Sessions whose connections lead to another one are taken over by a connection to it."""
        moved = [held for held in self.live() if held.link is not None and held.link.address != address]
        if moved:
            self._take_over_soon(moved)
            self.wake()

    def _take_over_soon(self, sessions: Iterable[Held]) -> None:
        with self._lock:
            self._ended_sessions += [held for held in sessions if held not in self._ended_sessions]

    # The work

    async def step(self) -> float:
        """Does what is due. Returns seconds until it has to be called again; math.inf if nothing is kept."""
        self._let_forgotten_go()
        await self.ask_why()
        due = self._due()
        try:
            for start in range(0, len(due), _PIPELINE):
                await self._renew_due(due[start : start + _PIPELINE])
        finally:
            # The task may be cancelled meanwhile.
            self._plan_again(due)
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
                    continue
                held.due = math.inf
                if held.cause is not None or held.pushed is not None:
                    continue
                (ended if time >= held.deadline else due).append(held)
        try:
            for held in ended:
                self._lose_ended(held)
        except BaseException:
            self._plan_again([*ended, *due])
            raise
        return due

    def _plan_again(self, grants: Sequence[Held]) -> None:
        """Plans the next attempt for the grants of `_due` that have no plan yet: their renewal has failed."""
        with self._lock:
            for held in grants:
                if math.isinf(held.due) and held.cause is None and held.pushed is None and not held.released:
                    self._plan_retry(held, now())

    async def _renew_due(self, due: Sequence[Held]) -> None:
        with self._lock:
            others = self._heap[0][0] if self._heap else math.inf
        time = now()
        # A server that does not answer must not hold up other renewals, and must leave time for another one.
        first = min(held.deadline for held in due)
        timeout = min(self._core.patience_for(first - time), max(0.25, others - time))
        try:
            # A connection that nobody answers on is left for a new one at once.
            await self.renew([held for held in due if _is_renewed(held)], time + 2 * timeout, timeout)
            await self._move([held for held in due if not _is_renewed(held) and not _has_home(held)], time + 2 * timeout, timeout)
        except BROKEN as error:
            log.debug("%d renewals have failed, and are repeated until the leases end: %s", len(due), error)
            return
        except Exception:
            # The user's credential provider, or a server that refuses the log-in.
            log.warning("%d renewals have failed, and are repeated until the leases end", len(due), exc_info=True)
            return
        with self._lock:
            time = now()
            for held in due:
                # The connection that it lives on may have closed meanwhile; then it has a sooner plan.
                if math.isinf(held.due) and held.cause is None and not held.released:
                    # A max_hold can leave less than a lease. A refusal other than NOTHELD may leave nothing to wait for.
                    pause = min(held.deadline - time, held.request.unrenewed) / 3
                    self._plan_at(held, min(held.deadline, time + max(pause, 0.005)) if _is_renewed(held) else held.deadline)

    async def renew(self, grants: Sequence[Held], until: float, timeout: Optional[float] = None) -> None:
        """Renews grants in one pipeline, and moves their deadlines. Those that are not held any more are lost. Raises one of BROKEN."""
        moved = await self._ask(grants, self._renewals, until, timeout, "is not renewed")
        if moved:
            # The node that leads does not know the sessions' connections yet, and must not take the pool's for theirs.
            self._take_over_soon(moved)
            await self._take_over_sessions(moved)

    async def _move(self, grants: Sequence[Held], until: float, timeout: float) -> None:
        """Moves grants whose connection has closed to the one that asks, and leaves their leases as they are."""
        # A server that does not know KEEP refuses it. The end of the lease is noticed then, and nothing else.
        await self._ask(grants, _keepings, until, timeout, "is not moved to another connection")

    async def _ask(
        self, grants: Sequence[Held], commands_of: Callable[[Held], list[Command]], until: float, timeout: Optional[float], refused: str
    ) -> list[Held]:
        """Asks for what is left of the leases of grants, in one pipeline. Returns the sessions of which it has not asked, since their connections do not
        lead to the node that leads."""
        if not grants:
            return []
        asked: list[Held] = []
        times = [0.0]

        def commands(link: Link) -> list[Command]:
            asked[:] = [held for held in grants if held.link is None or (held.link.is_open and held.link.address == link.address)]
            times[0] = now()
            return [command for held in asked for command in commands_of(held)]

        answers, link = await self._core.call_by(commands, until, timeout, urgent=True)
        replies = iter(answers)
        for held in asked:
            left_ms = self._left_ms(held, [next(replies) for _ in held.request.names], refused)
            if left_ms is not None and self.answered(held, times[0], left_ms / 1000):
                self._settle_on(held, link)
        return [held for held in grants if held not in asked] if len(asked) < len(grants) else []

    def _renewals(self, held: Held) -> list[Command]:
        """The commands that renew a grant."""
        lease_ms = self.longest_lease_ms(held.request, held.owner) or held.request.lease_ms
        return [held.request.renewal(name, held.owner, token, lease_ms) for name, token in zip(held.request.names, held.tokens)]

    def _left_ms(self, held: Held, replies: Iterable[Any], refused: str) -> Optional[int]:
        """Milliseconds that are left after a renewal. None if it is refused; the grant is lost then, if it is not held any more."""
        left_ms = None
        for reply in replies:
            if isinstance(reply, ResponseError):
                error = errors.from_reply(reply, held.request.title)
                if isinstance(error, errors.NotHeldError):
                    self.lose(held, errors.cause_of(error) if now() < held.lease_end else error.cause)
                else:
                    log.warning("'%s' %s: %s", held.request.title, refused, error)
                return None
            left_ms = int(reply) if left_ms is None else min(left_ms, int(reply))
        return left_ms

    def _settle_on(self, held: Held, link: Link) -> None:
        """The connection that renewed a grant is the one that it lives on, if its own has closed."""
        if not _has_home(held) and held.cause is None:
            self.lives_on(held, link)
            self.acquired_on(link)

    async def _withdraw_orphans(self) -> None:
        begun = now()
        while True:
            with self._lock:
                due = next((entry for entry in self._orphans if entry[0] <= begun), None)
                if due is None or now() - begun >= _SHARE:
                    return
                self._orphans.remove(due)
            try:
                await due[1]()
            except Exception:
                log.warning("a request could not be withdrawn; a grant would end with its lease", exc_info=True)

    async def _take_over_sessions(self, only: Optional[Sequence[Held]] = None) -> None:
        """Takes over the sessions whose connections have ended, or lead to a node that does not lead. The first failure ends it: the others would
        probably fail, too, and renewals may be due. With `only` it takes over these, and raises that failure."""
        begun = now()
        while True:
            with self._lock:
                held = next((held for held in self._ended_sessions if only is None or held in only), None)
                if held is None or now() - begun >= _SHARE:
                    return
                self._ended_sessions.remove(held)
            is_done = False
            try:
                is_done = await self._take_over(held)
            except Exception as error:
                level = logging.DEBUG if isinstance(error, BROKEN) else logging.WARNING
                log.log(level, "the session of '%s' is not taken over yet: %s", held.request.title, error)
                if only is None:
                    return
                raise
            finally:
                if not is_done:
                    self._take_over_soon([held])

    async def _take_over(self, held: Held) -> bool:
        """Takes over the session of a grant by a new connection. Returns True when there is nothing left to do."""
        if held.released or held.cause is not None or held.session is None:
            return True
        time = now()
        if time >= held.deadline:
            self._lose_ended(held)
            return True
        timeout = min(1.0, self._core.patience_for(held.deadline - time))
        link = await self._core.take(timeout, for_session=True)
        try:
            # The server binds the grant to the connection that names its session, and says what is left of the lease.
            sent = now()
            asks = self._renewals(held) if _is_renewed(held) else _keepings(held)
            grants, *replies = await self._core.exchange(link, [("LOCK.SESSION", held.session, "GRACE", held.request.grace_ms), *asks], timeout)
        except BaseException as error:
            if isinstance(error, BROKEN):
                self._core.broke(link, error)
            else:
                self._core.abort(link)
            raise
        if not isinstance(grants, int) or grants == 0:
            self._core.abort(link)
            self.ended(held, held.request.names[0], "its session ended: the connection was lost for longer than its grace")
            return True
        left_ms = self._left_ms(held, replies, "is not renewed")
        with self._lock:
            before, held.link = held.link, link
            held.detached_until = math.inf
        if left_ms is not None:
            self.answered(held, sent, left_ms / 1000)
        if held.released or held.cause is not None:
            self._core.abort(link)
        else:
            self.watch_session(held, link)
        if before is not None:
            self._core.abort(before)
        return True

    def acquired_on(self, link: Link) -> None:
        """Watches a connection that has acquired a grant, while nobody uses it."""
        raise NotImplementedError

    def watch_session(self, held: Held, link: Link) -> None:
        """Watches the connection of a session."""
        raise NotImplementedError


def _keepings(held: Held) -> list[Command]:
    """The commands that bind a grant to the connection that sends them, and leave its lease as it is."""
    return [held.request.keeping(name, held.owner, token) for name, token in zip(held.request.names, held.tokens)]


def _is_renewed(held: Held) -> bool:
    return held.request.renew and not held.is_forgotten


def _has_home(held: Held) -> bool:
    """Whether the server can tell the loss of a grant."""
    return held.home is not None or held.session is not None
