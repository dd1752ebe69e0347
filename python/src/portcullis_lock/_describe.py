"""How locks are described: the same for both interfaces."""

from __future__ import annotations

from typing import Any, Callable, Generic, Optional, Sequence, TypeVar

from portcullis_lock import _calls
from portcullis_lock._request import Request

L = TypeVar("L")
"""The interface's lock."""
A = TypeVar("A")
"""Its latch."""
U = TypeVar("U")
"""Its guard."""


class Locks(Generic[L, A, U]):
    """Describes locks. No method of it does I/O. It has the name of its subclasses, because Python's error for a wrong argument shows it."""

    def __init__(self, lock: Callable[[Any, Request], L], latch: Callable[[Any, str], A], guard: Callable[[Any, str], U]) -> None:
        self._lock_type, self._latch_type, self._guard_type = lock, latch, guard

    def lock(
        self,
        name: str,
        lease: float = 30.0,
        wait: Optional[float] = None,
        owner: Optional[str] = None,
        shared: bool = False,
        session: bool = False,
        delay: Optional[float] = None,
        max_hold: Optional[float] = None,
        renew: bool = True,
        grace: float = 2.0,
    ) -> L:
        """Describes a lock; `with` or `acquire` acquires it. Times are seconds, and not milliseconds as in Redis's PX.

        lease: the lock ends so long after the last renewal.
        wait: how long to wait in the queue: None and 0 not at all, math.inf for ever.
        owner: who holds it. Each acquisition has an owner of its own unless one is given; the same owner acquires again at once (reentrancy).
        shared: many can hold it together, and none exclusively meanwhile.
        session: the lock ends `grace` seconds after this process's connection, instead of with its lease.
        delay: keeps the lock free so long when it ends other than by release, so that late writes arrive before the next holder.
        max_hold: the longest whole time, whatever is renewed.
        renew: renews by itself at a third of the lease, for as long as the grant is kept.
        Raises ValueError if a time is not a number of seconds, or is longer than a hundred years.
        """
        return self._lock_type(
            self, Request("lock", (name,), lease, wait, owner, shared, session, grace, delay, max_hold, renew)
        )  # fmt: skip

    def all(
        self,
        names: Sequence[str],
        lease: float = 30.0,
        wait: Optional[float] = None,
        owner: Optional[str] = None,
        session: bool = False,
        renew: bool = True,
        grace: float = 2.0,
    ) -> L:
        """Describes several locks that are acquired together or not at all. Such acquisitions cannot deadlock each other, in whatever order."""
        return self._lock_type(self, Request("all", _calls.names_of(names), lease, wait, owner, False, session, grace, renew=renew))

    def semaphore(
        self,
        name: str,
        limit: int,
        permits: int = 1,
        lease: float = 30.0,
        wait: Optional[float] = None,
        owner: Optional[str] = None,
        session: bool = False,
        renew: bool = True,
        grace: float = 2.0,
    ) -> L:
        """Describes `permits` of a semaphore's `limit`. All its users give the same limit."""
        return self._lock_type(
            self, Request("semaphore", (name,), lease, wait, owner, False, session, grace, renew=renew, limit=limit, permits=permits)
        )  # fmt: skip

    def latch(self, name: str) -> A:
        """A count-down latch."""
        return self._latch_type(self, name)

    def guard(self, resource: str) -> U:
        """A guard for writes to a resource that cannot compare tokens itself. Its name is another one than the lock's."""
        return self._guard_type(self, resource)
