"""What an acquisition asks for, and the commands of its grant."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from typing import Any, Optional, Tuple, Union

Word = Union[str, bytes, int]
Command = Tuple[Word, ...]

# A hundred years, in seconds: the longest lease. A wait that is longer is one without limit.
FAR = 100 * 365 * 86_400.0


def ms(seconds: float, what: str) -> int:
    """Milliseconds, rounded up, at least 1. Raises ValueError if the seconds are not a positive number, or too many."""
    found = number(seconds)
    if not found > 0 or found == math.inf:
        raise ValueError(f"{what} is {seconds!r}; it must be a positive number of seconds")
    if found > FAR:
        raise ValueError(f"{what} is {seconds!r}; it can be at most a hundred years, in seconds")
    return max(1, math.ceil(found * 1000 - 1e-6))


def number(value: Any) -> float:
    """A number as a float; NaN for anything else. Neither a text nor a `timedelta` is a number."""
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return float(value) if isinstance(value, (Real, Decimal)) else math.nan


@dataclass
class Request:
    """Options of an acquisition. Checked once, when a lock is described; no I/O. It is not changed afterwards, and not frozen either: assignments to
    a frozen dataclass took as long as the rest of the check."""

    kind: str
    """"lock", "all" or "semaphore"."""
    names: Tuple[str, ...]
    lease: float
    wait: Optional[float]
    owner: Optional[str]
    shared: bool = False
    session: bool = False
    grace: float = 2.0
    delay: Optional[float] = None
    max_hold: Optional[float] = None
    renew: bool = True
    limit: int = 0
    permits: int = 1

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("no name of a lock is given")
        for name in self.names:
            if not isinstance(name, str):
                raise TypeError(f"the name of a lock is a str, not {name!r}")
        head: Tuple[Word, ...]
        self.lease_ms = ms(self.lease, "lease")
        self.lease = float(self.lease)
        tail: Tuple[Word, ...] = (self.lease_ms,)
        if self.kind == "semaphore":
            head = ("SEM.ACQUIRE", self.names[0])
            tail += ("LIMIT", self.limit, "PERMITS", self.permits)
            if not 1 <= self.permits <= self.limit:
                raise ValueError(f"permits is {self.permits} and limit {self.limit}; 1 <= permits <= limit must hold")
        elif self.kind == "all":
            head = ("LOCK.ACQUIREALL", len(self.names), *self.names)
        else:
            head = ("LOCK.ACQUIRE", self.names[0])
            if self.shared:
                tail += ("SHARED",)
            if self.delay:
                tail += ("DELAY", ms(self.delay, "delay"))
            if self.max_hold:
                tail += ("MAXHOLD", ms(self.max_hold, "max_hold"))
                self.max_hold = float(self.max_hold)
        if self.session:
            tail += ("SESSION",)
            grace = number(self.grace)
            if not 0 <= grace <= FAR:
                raise ValueError(f"grace is {self.grace!r}; it must be a number of seconds")
            self.grace_ms = math.ceil(grace * 1000)
        if self.wait is not None:
            wait = number(self.wait)
            if not wait >= 0:
                raise ValueError(f"wait is {self.wait!r}; it is None or 0 for not at all, a number of seconds, or math.inf for ever")
            self.wait = wait if wait <= FAR else math.inf
        if self.owner is not None and not (isinstance(self.owner, str) and self.owner):
            raise ValueError(f"owner is {self.owner!r}; it must be a text that is not empty")
        self._head, self._tail = head, tail
        self.title = "', '".join(self.names)
        self.unrenewed = min(self.lease, self.max_hold) if self.max_hold else self.lease
        self.word = "semaphore" if self.kind == "semaphore" else "lock" if len(self.names) == 1 else "locks"

    _head: Tuple[Word, ...] = field(init=False, default=())
    _tail: Tuple[Word, ...] = field(init=False, default=())
    title: str = field(init=False, default="")
    """The names, as messages show them between quotes."""
    unrenewed: float = field(init=False, default=0.0)
    """How long a grant lasts without renewal, in seconds."""
    word: str = field(init=False, default="")
    lease_ms: int = field(init=False, default=0)
    grace_ms: int = field(init=False, default=0)

    @property
    def may_be_upgraded(self) -> bool:
        """Whether the server may replace the token meanwhile: a named owner of a shared lock can upgrade it to an exclusive one."""
        return self.shared and self.owner is not None

    def acquire(self, owner: str, request_id: str, wait: float, lease_ms: Optional[int] = None) -> Command:
        """The command that acquires. `wait` is the rest of the wait in seconds; 0 is not at all."""
        tail = self._tail if lease_ms is None else (lease_ms, *self._tail[1:])
        if wait <= 0:
            return (*self._head, owner, *tail, "REQUEST", request_id)
        # WAIT 0 waits for ever, so a finite wait is at least a millisecond.
        wait_ms = 0 if wait > FAR else max(1, math.ceil(wait * 1000))
        return (*self._head, owner, *tail, "WAIT", wait_ms, "REQUEST", request_id)

    def release(self, name: str, owner: str, token: int, request_id: str) -> Command:
        """The command that releases one hold of that grant, and of no later one."""
        verb = "SEM.RELEASE" if self.kind == "semaphore" else "LOCK.RELEASE"
        if self.may_be_upgraded:
            return (verb, name, owner, "REQUEST", request_id)
        return (verb, name, owner, "TOKEN", token, "REQUEST", request_id)

    def renewal(self, name: str, owner: str, token: int, lease_ms: int) -> Command:
        """The command that restarts the lease of that grant, and of no later one."""
        verb = "SEM.RENEW" if self.kind == "semaphore" else "LOCK.RENEW"
        if self.may_be_upgraded:
            return (verb, name, owner, lease_ms)
        return (verb, name, owner, lease_ms, "TOKEN", token)

    def keeping(self, name: str, owner: str, token: int) -> Command:
        """The command that moves that grant to another connection, and leaves its lease as it is."""
        verb = "SEM.RENEW" if self.kind == "semaphore" else "LOCK.RENEW"
        return (verb, name, owner, "KEEP") if self.may_be_upgraded else (verb, name, owner, "KEEP", "TOKEN", token)

    def question(self, name: str, owner: str, token: int) -> Command:
        """The command whose refusal says why a grant has ended."""
        verb = "SEM.RENEW" if self.kind == "semaphore" else "LOCK.RENEW"
        return (verb, name, owner, self.lease_ms, "TOKEN", token)

    def tokens(self, reply: Any) -> Optional[Tuple[int, ...]]:
        """The tokens of a reply; None where it is not granted."""
        if reply is None:
            return None
        return tuple(reply) if isinstance(reply, list) else (int(reply),)
