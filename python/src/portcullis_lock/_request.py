"""What an acquisition asks for, and the commands of its grant."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Optional, Tuple, Union

Word = Union[str, bytes, int]
Command = Tuple[Word, ...]

# The longest wait and lease: a hundred years, in seconds.
_FAR = 100 * 365 * 86_400.0


def ms(seconds: float, what: str) -> int:
    """Milliseconds, rounded up, at least 1. Raises ValueError if the seconds are not a positive number."""
    if not _is_at_least(0, seconds) or not 0 < seconds <= _FAR:
        raise ValueError(f"{what} is {seconds!r}; it must be a positive number of seconds")
    return max(1, math.ceil(seconds * 1000 - 1e-6))


def _is_at_least(least: float, seconds: Any) -> bool:
    """Whether this is a number, and not a smaller one. Neither a text nor a `timedelta` is a number."""
    try:
        return bool(seconds >= least)
    except TypeError:
        return False


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
        if self.session:
            tail += ("SESSION",)
        if self.wait is not None and not _is_at_least(0, self.wait):
            raise ValueError(f"wait is {self.wait!r}; it is None or 0 for not at all, a number of seconds, or math.inf for ever")
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
        wait_ms = 0 if wait > _FAR else max(1, math.ceil(wait * 1000))
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

    def tokens(self, reply: Any) -> Optional[Tuple[int, ...]]:
        """The tokens of a reply; None where it is not granted."""
        if reply is None:
            return None
        return tuple(reply) if isinstance(reply, list) else (int(reply),)
