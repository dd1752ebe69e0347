"""What the server tells of locks, as objects."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence, Tuple


@dataclass(frozen=True)
class Holder:
    """Who holds a lock. Times are seconds."""

    owner: str
    token: int
    mode: str
    """"exclusive" or "shared"."""
    holds: int
    lease: float
    """The rest of the lease."""
    held: float
    address: str
    client_name: str
    gone: Optional[float]
    """Since when its connection has ended; None while it is connected."""

    def __str__(self) -> str:
        where = f" ('{self.client_name}')" if self.client_name else ""
        gone = "" if self.gone is None else f", whose connection ended {_seconds(self.gone)} ago"
        return f"'{self.owner}' at {self.address}{where} for {_seconds(self.held)}, lease ends in {_seconds(self.lease)}{gone}"


@dataclass(frozen=True)
class Waiter:
    """Who waits for a lock. Times are seconds."""

    owner: str
    mode: str
    waited: float
    left: Optional[float]
    """The rest of the wait; None without limit."""
    address: str
    client_name: str


@dataclass(frozen=True)
class LockInfo:
    """A lock, semaphore, latch, guard or plain key, as `LOCK.INFO` shows it."""

    name: str
    kind: str
    holders: Sequence[Holder]
    waiters: Sequence[Waiter]
    fence: Optional[int]
    """The last fencing token."""
    fields: Mapping[str, Any]
    """All fields of the server's reply, times in milliseconds."""

    @property
    def text(self) -> str:
        """Who holds it and who waits, in one line."""
        if not self.holders:
            return "nobody holds it now" if self.kind in ("lock", "semaphore") else f"a plain key of this name is in the way ({self.kind})"
        who = "; ".join(map(str, self.holders[:3]))
        more = f" and {len(self.holders) - 3} others" if len(self.holders) > 3 else ""
        others = len(self.waiters)
        queue = f"; {others} {'waits' if others == 1 else 'wait'} for it" if others else ""
        return f"held by {who}{more}{queue}"

    def __str__(self) -> str:
        return f"'{self.name}': {self.text}"


@dataclass(frozen=True)
class Throttled:
    """The answer of a rate limit. Times are seconds."""

    limited: bool
    """Whether the request is refused."""
    limit: int
    """Requests that are allowed at once."""
    remaining: int
    retry_after: Optional[float]
    """When the request would be allowed; None if it is allowed now, or never will be."""
    reset_after: float
    """When the limit is as if it had never been used."""

    @property
    def allowed(self) -> bool:
        return not self.limited


def throttled(reply: Sequence[int]) -> Throttled:
    limited, limit, remaining, retry_after, reset_after = reply
    return Throttled(bool(limited), limit, remaining, None if retry_after < 0 else float(retry_after), float(reset_after))


def lock_info(name: str, reply: Any) -> Optional[LockInfo]:
    """Parses a reply of LOCK.INFO, of RESP2 or RESP3."""
    if reply is None:
        return None
    fields = _map(reply)
    return LockInfo(
        name,
        str(fields.get("kind", "lock")),
        _holders(fields.get("holders")),
        _waiters(fields.get("waiters")),
        fields.get("fence"),
        fields,
    )


def _map(reply: Any) -> dict[str, Any]:
    return dict(reply) if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2]))


def _holders(replies: Any) -> Tuple[Holder, ...]:
    return tuple(
        Holder(
            fields["owner"], fields["token"], fields["mode"], fields["holds"], fields["lease"] / 1000, fields["held"] / 1000, fields["addr"],
            fields.get("client-name") or "", None if fields.get("gone") is None else fields["gone"] / 1000,
        )
        for fields in map(_map, replies or ())
    )  # fmt: skip


def _waiters(replies: Any) -> Tuple[Waiter, ...]:
    return tuple(
        Waiter(
            fields["owner"], fields["mode"], fields["waited"] / 1000, None if fields.get("left") is None else fields["left"] / 1000,
            fields["addr"], fields.get("client-name") or "",
        )
        for fields in map(_map, replies or ())
    )  # fmt: skip


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def not_acquired(word: str, title: str, wait: Optional[float], infos: Sequence[Optional[LockInfo]]) -> str:
    """The message of NotAcquiredError."""
    how = "at once, as no wait=… is given" if wait is None else "at once" if not wait else "however long" if math.isinf(wait) else f"within {_seconds(wait)}"
    if len(infos) == 1:
        who = "nobody holds it now" if infos[0] is None else infos[0].text
    else:
        who = "; ".join(str(info) for info in infos if info is not None) or "nobody holds one of them now"
    return f"the {word} '{title}' {'was' if not word.endswith('s') else 'were'} not granted {how}: {who}"
