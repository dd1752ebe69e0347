"""A grant as this process knows it."""

from __future__ import annotations

import logging
from typing import Any, Callable, Optional, Tuple, TypeVar

from portcullis_lock._clock import now
from portcullis_lock._link import Link
from portcullis_lock._request import Request

log = logging.getLogger("portcullis_lock")
H = TypeVar("H", bound="Held")


class Held:
    """State of a grant. The grants of both interfaces derive from it."""

    __slots__ = (
        "request", "owner", "request_id", "_tokens", "deadline", "cause", "released", "is_uncertain", "session", "link", "due", "_callbacks", "_event",
    )  # fmt: skip

    def __init__(self, request: Request, owner: str, request_id: str, tokens: Tuple[int, ...], deadline: float) -> None:
        self.request = request
        self.owner = owner
        """The owner that the server knows; unique unless one was given."""
        self.request_id = request_id
        self._tokens = tokens
        self.deadline = deadline
        """The end of the lease on this process's monotonic clock, counted from before the request: the server's lease ends no earlier."""
        self.cause: Optional[str] = None
        """Why the grant is lost; None while it is not."""
        self.released = False
        self.is_uncertain = False
        self.session: Optional[str] = None
        self.link: Optional[Link] = None
        """The connection of its session."""
        self.due = 0.0
        """When the keeper looks at it next."""
        self._callbacks: Optional[list[Callable[[Any], object]]] = None
        self._event: Any = None

    @property
    def name(self) -> str:
        """The lock's name. Of several locks, their names with commas."""
        return ", ".join(self.request.names)

    @property
    def token(self) -> int:
        """The fencing token, larger than every earlier one. Send it with each write. Several locks have several: `tokens`."""
        if len(self._tokens) != 1:
            raise ValueError(f"several locks have a token each: use tokens['{self.request.names[0]}']")
        return self._tokens[0]

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each name."""
        return dict(zip(self.request.names, self._tokens))

    @property
    def is_held(self) -> bool:
        """Whether it is held, as far as this process knows: neither lost nor released, and its lease has not ended on this process's clock."""
        return self.cause is None and not self.released and now() < self.deadline

    def remaining(self) -> float:
        """Seconds until the lease ends, if it is not renewed before. Never more than the server has; 0 when lost or released."""
        if self.cause is not None or self.released:
            return 0.0
        return max(0.0, self.deadline - now())

    @property
    def lost_because(self) -> Optional[str]:
        """Why it is lost; None while it is not."""
        return self.cause

    def on_lost(self: H, callback: Callable[[H], object]) -> None:
        """Has this function called once when the grant is lost, in the thread that renews or in the event loop; at once if it is lost already.

        It must be quick: other locks are not renewed meanwhile. Its exceptions are logged."""
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)
        if self.cause is not None:
            self._tell()

    def _lost_event(self, make: Callable[[], Any]) -> Any:
        """The event of the loss. Most grants need none, so it is made when it is asked for."""
        if self._event is None:
            event = make()
            if self.cause is not None:
                event.set()
            self._event = event
            if self.cause is not None:  # It was lost meanwhile.
                event.set()
        return self._event

    def end(self, cause: str) -> None:
        """Records the loss, and tells of it. Only the first one counts."""
        if self.cause is not None:
            return
        self.cause = cause
        if self._event is not None:
            self._event.set()
        self._tell()

    def _tell(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return  # Another thread has taken the last one.
            try:
                callback(self)
            except Exception:
                log.exception("a callback of the lost lock '%s' has failed", self.request.title)

    def __repr__(self) -> str:
        state = "released" if self.released else f"lost: {self.cause}" if self.cause else f"{self.remaining():.1f} s left"
        return f"<{type(self).__name__} of '{self.request.title}', token {', '.join(map(str, self._tokens))}, {state}>"
