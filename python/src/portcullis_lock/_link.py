"""What the core needs of connections and of the world. There are two of each: blocking ones, and ones on asyncio.

The core is written once, as coroutines. On asyncio they run as they are. In blocking code `run` drives them: the blocking world does its work
inside of the calls, so these coroutines never suspend.
"""

from __future__ import annotations

import inspect
import socket
from typing import Any, AsyncContextManager, Callable, Coroutine, Mapping, Optional, Protocol, Sequence, TypeVar

import redis.exceptions

from portcullis_lock._request import Command

T = TypeVar("T")

# What breaks a connection, or keeps it from being made.
BROKEN = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError)
TIMED_OUT = (redis.exceptions.TimeoutError, TimeoutError)

# A wait has no other traffic: half a minute after a server has vanished without a word, its connections end.
_KEEPALIVE = {
    getattr(socket, name): value for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)) if hasattr(socket, name)
}


class Link(Protocol):
    """A connection that one user has at a time."""

    reused: bool
    """Whether it has served an earlier user."""
    address: str
    grants: int
    """Number of grants whose loss the server tells on this connection. The keeper counts them."""

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed, as far as is known without reading."""
        ...

    async def exchange(self, commands: Sequence[Command], timeout: Optional[float]) -> list[Any]:
        """Sends commands and reads their replies; error replies are values. Raises one of BROKEN, and the link is closed then.

        `timeout` is in seconds, for each reply; None waits without limit."""
        ...

    async def send(self, commands: Sequence[Command]) -> None:
        """The first half of an exchange."""
        ...

    async def receive(self, count: int, timeout: Optional[float]) -> list[Any]:
        """The second half."""
        ...

    async def is_readable(self, timeout: float) -> bool:
        """Waits so many seconds for a reply to begin, a push, or the connection's end."""
        ...

    def abort(self) -> None:
        """Closes the connection at once. May be called twice."""
        ...

    def rest(self) -> None:
        """Called when nobody uses it from now on."""
        ...

    async def read_pushes(self) -> bool:
        """Reads pushes that have arrived while it was idle. Returns False if the connection is closed."""
        ...


class World(Protocol):
    """Connections and pauses."""

    async def open(self, options: Mapping[str, Any], timeout: float) -> Link:
        """Connects. Raises one of BROKEN."""
        ...

    async def probe(self, host: str, port: int, timeout: float) -> bytes:
        """Asks what is there by QUESTION, and returns the first bytes of the answer. Raises one of BROKEN."""
        ...

    async def pause(self, seconds: float) -> None:
        """Waits."""
        ...

    def turn(self) -> AsyncContextManager[None]:
        """Bounds how many requests that do not wait are under way at once."""
        ...

    def forked(self) -> None:
        """Begins anew in a forked child."""
        ...

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Does work that must be done although its caller is being cancelled."""
        ...


# Redis's protocol and HTTP both have an error for it.
QUESTION = b"PING / HTTP/1.0\r\n\r\n"


def protocol_of(answer: bytes) -> str:
    """The protocol of an answer to QUESTION: "RESP", "HTTP", "TLS", or nothing."""
    if answer.startswith((b"-", b"+")):
        return "RESP"
    if answer.startswith((b"HTTP/", b"<")):
        return "HTTP"
    # An alert of TLS.
    return "TLS" if answer.startswith(b"\x15\x03") else ""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine of the core over the blocking world."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a blocking call has suspended; this is a bug of portcullis_lock")


def connection_options(connection_class: Any, options: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    """Arguments for a connection of redis-py: the given ones, without retries, without health checks, and without CLIENT SETINFO, which would
    cost two round trips."""
    known = inspect.signature(connection_class.__init__).parameters
    base = known_options(connection_class)
    silent = ("driver_info",) if "driver_info" in base or "driver_info" in known else ("lib_name", "lib_version")
    alive = {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE} if "host" in options else {}
    return {
        "protocol": 3,
        **alive,
        **options,
        **{name: None for name in silent},
        "decode_responses": True,
        "encoding_errors": "surrogateescape",
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
    }


def known_options(connection_class: Any) -> set[str]:
    """Names of the arguments that a class of connections takes, with those of its bases."""
    names: set[str] = set()
    for base in connection_class.__mro__:
        init = base.__dict__.get("__init__")
        if init is not None:
            names |= set(inspect.signature(init).parameters)
    return names


def listen(parser: Any, on_push: Callable[[Any], Any]) -> None:
    """Has the parser call this function with each push. redis-py has renamed the method in version 5.1."""
    for setter in ("set_pubsub_push_handler", "set_push_handler"):
        if hasattr(parser, setter):
            getattr(parser, setter)(on_push)
            return
