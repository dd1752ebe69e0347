"""A grant: its state, which the keeper has, and the handle, which the user has.

The keeper renews the state for as long as the user has the handle. A handle that is collected without a release ends the renewing.
"""

from __future__ import annotations

import logging
import math
import threading
import warnings
import weakref
from typing import Any, Callable, ClassVar, Optional, Tuple, TypeVar

from portcullis_lock import _process, errors
from portcullis_lock._clock import certain, now
from portcullis_lock._link import Link
from portcullis_lock._request import Request

log = logging.getLogger("portcullis_lock")
H = TypeVar("H", bound="Handle")


class Held:
    """State of a grant."""

    __slots__ = (
        "request", "owner", "request_id", "tokens", "deadline", "lease_end", "detached_until", "cause", "released", "is_uncertain", "session", "link", "home", "due", "pushed",
        "is_forgotten", "pinned", "process", "_callbacks", "_events",
    )  # fmt: skip

    def __init__(self, request: Request, owner: str, request_id: str, tokens: Tuple[int, ...], sent: float) -> None:
        self.request = request
        self.owner = owner
        """The owner that the server knows; unique unless one was given."""
        self.request_id = request_id
        self.tokens = tokens
        self.lease_end = sent + request.unrenewed
        """The end of the lease on this process's monotonic clock, counted from before the last request that was answered: the server's lease ends no
        earlier, if their clocks go at the same speed."""
        self.deadline = sent + certain(request.unrenewed)
        """When this process counts as no holder any more: a margin before the end of the lease, and no later than `detached_until`."""
        self.detached_until = math.inf
        """The end of the grace, less a margin, since the connection of its session has ended."""
        self.cause: Optional[str] = None
        """Why the grant is lost; None while it is not."""
        self.released = False
        self.is_uncertain = False
        self.session: Optional[str] = None
        self.link: Optional[Link] = None
        """The connection of its session."""
        self.home: Optional[Link] = None
        """The connection that the server sends its loss to. None when that has closed, and for a session."""
        self.due = 0.0
        """When the keeper looks at it next."""
        self.pushed: Optional[Tuple[str, str]] = None
        """The name and the reason of a loss that the server has told, while it is asked for more."""
        self.is_forgotten = False
        """Whether the handle was collected without a release."""
        self.pinned: Any = None
        """The handle, where it is kept until the release."""
        self.process = _process.number
        self._callbacks: Optional[list[Callable[[], object]]] = None
        self._events: list[Any] = []
        """Weak references to the events of its loss that somebody has. More than one if two threads have asked at once."""

    @property
    def is_ours(self) -> bool:
        """Whether this process has acquired it, and not a process that it was forked from."""
        return self.process == _process.number

    def refuse_if_copied(self) -> None:
        """Raises OtherProcessError in a forked child."""
        if self.process != _process.number:
            word, title = self.request.word, self.request.title
            raise errors.OtherProcessError(
                f"the grant of the {word} '{title}' belongs to the process that this one was forked from. Only that process can renew, check and release it; "
                "acquire a lock of your own here",
                title,
            )

    def answered(self, sent: float, left: float) -> None:
        """The server has answered a request, which was sent at that time, with the seconds that are left of the lease."""
        self.lease_end = sent + left
        self.deadline = min(sent + certain(left), self.detached_until)

    def detach(self, time: float) -> None:
        """The connection of its session was seen to end at that time. The server may end the grant when the grace is over."""
        self.detached_until = min(self.detached_until, time + certain(self.request.grace_ms / 1000))
        self.deadline = min(self.deadline, self.detached_until)

    @property
    def is_held(self) -> bool:
        return self.cause is None and self.pushed is None and not self.released and now() < self.deadline and self.is_ours

    def remaining(self) -> float:
        return max(0.0, self.deadline - now()) if self.is_held else 0.0

    def lost_event(self, make: Callable[[], Any], handle: Handle) -> Any:
        """An event of the loss. It refers to the handle: the grant is kept for as long as somebody waits for its loss."""
        for known in list(self._events):
            event = known()
            if event is not None:
                return event
        event = make()
        event._grant = handle
        self._events.append(weakref.ref(event, self._events.remove))
        if self.cause is not None:
            event.set()
        return event

    def on_lost(self, callback: Callable[[], object]) -> None:
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)
        if self.cause is not None:
            self._tell()

    def end(self, cause: str) -> None:
        """Records the loss, and tells of it. Only the first one counts."""
        if self.cause is not None:
            return
        self.cause = cause
        for known in list(self._events):
            event = known()
            if event is not None:
                event.set()
        self._tell()
        self.pinned = None

    def _tell(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return  # Another thread has taken the last one.
            try:
                callback()
            except BaseException as error:
                log.exception("a callback of the lost lock '%s' has failed", self.request.title)
                # Ctrl-C, while the main thread is in the callback. SystemExit would end the renewing of all other locks.
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    raise


class Handle:
    """A grant, as its user has it. The grants of both interfaces derive from it."""

    __slots__ = ("_held", "__weakref__")
    _locks: ClassVar[Any]
    """The locks of its `connect`. Each has a class of its own, so that a grant needs no attribute for them."""

    def __init__(self, held: Held) -> None:
        self._held = held

    @property
    def name(self) -> str:
        """The lock's name. Of several locks, their names with commas."""
        return ", ".join(self._held.request.names)

    @property
    def owner(self) -> str:
        """The owner that the server knows; unique unless one was given."""
        return self._held.owner

    @property
    def token(self) -> int:
        """The fencing token, larger than every earlier one. Send it with each write. Several locks have several: `tokens`."""
        tokens = self._held.tokens
        if len(tokens) != 1:
            raise ValueError(f"several locks have a token each: use tokens['{self._held.request.names[0]}']")
        return tokens[0]

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each name."""
        return dict(zip(self._held.request.names, self._held.tokens))

    @property
    def is_held(self) -> bool:
        """Whether this process holds it, as far as it knows: neither lost nor released, and its lease, less a margin, is not over by this process's clock."""
        return self._held.is_held

    @property
    def released(self) -> bool:
        """Whether it was released."""
        return self._held.released

    def remaining(self) -> float:
        """Seconds for which this process may count on the lease, if it is not renewed before: what the server has, less a margin for clocks and for the time
        that it takes to stop. 0 when lost or released."""
        return self._held.remaining()

    @property
    def lost_because(self) -> Optional[str]:
        """Why it is lost; None while it is not."""
        return self._held.cause

    def on_lost(self: H, callback: Callable[[H], object]) -> None:
        """Has this function called once when the grant is lost, in a thread of this package or in the event loop; at once if it is lost already.

        It must be quick: other losses are told, and other locks renewed, after it. Its exceptions are logged."""
        # A strong reference would keep the grant renewed when its user has forgotten it.
        weakly = weakref.ref(self)

        def call() -> None:
            grant = weakly()
            if grant is not None:
                callback(grant)

        self._held.on_lost(call)

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        held = self._held
        if held.released or not held.is_ours:
            return
        self._locks._keeper.forget(held)
        # A lease that is not renewed is often meant to run out by itself.
        if held.request.renew and held.cause is None:
            word, title = held.request.word, held.request.title
            _warn(
                f"the {word} '{title}' was not released, and nothing refers to its grant: it is not renewed any more, and ends with its lease. "
                "Acquire it by `with`, or keep the grant and call its release()",
                ResourceWarning,
                source=self,
            )

    def __repr__(self) -> str:
        held = self._held
        state = "released" if held.released else f"lost: {held.cause}" if held.cause else f"{held.remaining():.1f} s left"
        return f"<{type(self).__name__} of '{held.request.title}', token {', '.join(map(str, held.tokens))}, {state}>"
