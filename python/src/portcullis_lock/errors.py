"""Errors of the package. Each message says what happened, and where possible what to do.

Errors of connections are redis-py's own: `redis.exceptions.ConnectionError` and `redis.exceptions.TimeoutError`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Sequence

import redis.exceptions


class LockError(redis.exceptions.LockError):
    """Base of all errors of locks. `except redis.exceptions.LockError` catches it as well."""

    def __init__(self, message: str, lock_name: Optional[str] = None) -> None:
        super().__init__(message, lock_name)

    def __str__(self) -> str:
        # Older versions of redis-py show all arguments instead.
        return str(self.message)


class NotAcquiredError(LockError):
    """The lock was not granted within the wait. The message says who holds it."""


class NotHeldError(LockError, redis.exceptions.LockNotOwnedError):
    """The grant has ended before its release. `cause` says how: "its lease ended 40 ms ago", "deleted by client 7 …"."""

    def __init__(self, message: str, cause: str, lock_name: Optional[str] = None) -> None:
        super().__init__(message, lock_name)
        self.cause = cause


class OtherProcessError(LockError):
    """The grant was acquired by the process that this one was forked from, and is that process's. It is still held there."""


@dataclass(frozen=True)
class Wait:
    """One owner of a deadlock, and what it waits for."""

    owner: str
    lock: str
    """Empty for a lock that the user may not see, or several that the server left out."""
    behind: str
    """The owner that holds the lock, or that is ahead in its queue."""
    held: bool
    """Whether `behind` is known to hold the lock."""


class DeadlockError(LockError):
    """The server refused a wait that would have closed a cycle of owners. The others in the cycle go on undisturbed.

    Release what this owner holds, and begin again; or take all locks at once with `locks.all([...])`, which cannot deadlock.
    """

    def __init__(self, message: str, cycle: Sequence[Wait], lock_name: Optional[str] = None) -> None:
        super().__init__(message, lock_name)
        self.cycle = tuple(cycle)
        """The cycle, beginning with the refused owner. Empty if quotes in names make the server's text ambiguous."""


class StaleTokenError(LockError):
    """A guarded resource has seen a larger fencing token: another holder came after this one. Do not write."""

    def __init__(self, resource: str, token: int, seen: int) -> None:
        super().__init__(
            f"token {token} is stale: '{resource}' has seen {seen}, so the lock has had a later holder. Stop writing, and acquire the lock again",
            resource,
        )
        self.resource, self.token, self.seen = resource, token, seen


class LimitError(LockError):
    """The semaphore exists with another limit. All its users must give the same one."""


class NotPortcullisError(LockError):
    """The server has no native lock commands."""


class NoLeaderError(LockError, redis.exceptions.ConnectionError):
    """None of the nodes leads, or none can be reached."""

    is_reached = True
    """Whether a node has answered."""


class WrongProtocolError(LockError, redis.exceptions.ConnectionError):
    """What answers at the address does not speak the Redis protocol as the URL has it: it is an HTTP server, or only one side uses TLS."""


class ReplyError(LockError):
    """The server refused the command for another reason. The message is the server's."""


_STALE = re.compile(r"^STALE token (\d+) is behind (\d+)")
_NOT_HELD = re.compile(r" is not held by '.*?': (.*)$", re.DOTALL)
# What the server says of a grant that it knows nothing of.
_FORGOTTEN = re.compile(r"^(never held|held by '.*' for \d+ ms)$", re.DOTALL)
_UNKNOWN = re.compile(r"^unknown command '?`?(LOCK|SEM|LATCH|CL)\.", re.IGNORECASE)


def from_reply(error: redis.exceptions.ResponseError, name: Optional[str] = None) -> LockError:
    """The error of this package for an error reply."""
    text = str(error)
    code, _, message = text.partition(" ")
    if code == "NOTHELD":
        found = _NOT_HELD.search(message)
        return NotHeldError(message, found.group(1) if found else message, name)
    if code == "DEADLOCK":
        advice = "Release what this owner holds and begin again, or take the locks at once with locks.all([...])"
        return DeadlockError(f"{message}. {advice}", cycle_of(message), name)
    if code == "LIMIT":
        return LimitError(f"{message}. All users of a semaphore must give the same limit", name)
    if code == "WRONGTYPE":
        advice = "The name belongs to something else (a guard, for instance, cannot have its lock's name): print(locks.info(name)) shows what it is"
        return ReplyError(f"{text}. {advice}", name)
    stale = _STALE.match(text)
    if stale:
        return StaleTokenError(name or "", int(stale.group(1)), int(stale.group(2)))
    return ReplyError(text, name)


def cause_of(error: NotHeldError) -> str:
    """Why a grant that this process has had, and whose lease has not ended on its clock, has ended."""
    if not _FORGOTTEN.match(error.cause):
        return error.cause
    now_held = f" (now {error.cause})" if error.cause.startswith("held") else ""
    return f"the server does not know the grant: it has restarted without its data, or has lost its last writes{now_held}"


def is_unknown_command(error: redis.exceptions.ResponseError) -> bool:
    """Whether the server does not know a native lock command."""
    return bool(_UNKNOWN.match(str(error)))


def cycle_of(text: str) -> list[Wait]:
    """Parses `'x' waits for 'a' held by 'y', who waits for 'b' asked for before by 'x'`."""
    for unnamed in ("a lock that you may not see", "locks that are not shown here"):
        text = text.replace(f" waits for {unnamed} behind '", " waits for '' asked for before by '")
    first, found, rest = text.removeprefix("'").partition("' waits for '")
    if not found or not rest.endswith("'"):
        return []
    cycle, owner = [], first
    for step in rest[:-1].split("', who waits for '"):
        lock, held, behind = step.partition("' held by '")
        if not held:
            lock, found, behind = step.partition("' asked for before by '")
            if not found:
                return []
        cycle.append(Wait(owner, lock, behind, bool(held)))
        owner = behind
    return cycle if owner == first else []
