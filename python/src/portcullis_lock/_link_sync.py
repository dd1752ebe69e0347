"""Blocking connections and pauses."""

from __future__ import annotations

import logging
import socket
import time
from typing import Any, AsyncContextManager, Callable, Coroutine, Mapping, Optional, Sequence

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ResponseError

from portcullis_lock import _process
from portcullis_lock._link import BROKEN, QUESTION, connection_options, listen, run
from portcullis_lock._request import Command
from portcullis_lock._wire import pack

log = logging.getLogger("portcullis_lock")

OnPush = Callable[[Any], None]


class BlockingLink:
    """A connection of redis-py, used without its pool and its retries."""

    __slots__ = ("_connection", "_timeout", "reused", "address", "grants", "is_watched", "descriptor", "__weakref__")

    def __init__(self, connection: Any, timeout: float, address: str) -> None:
        self._connection = connection
        self._timeout: Optional[float] = timeout
        self.reused = False
        self.address = address
        self.grants = 0
        self.is_watched = False
        """Whether the keeper's thread waits for pushes on it."""
        self.descriptor = _process.descriptor_of(self.fileno())
        _process.register_link(self)

    async def exchange(self, commands: Sequence[Command], timeout: Optional[float]) -> list[Any]:
        self._set_timeout(timeout)
        await self.send(commands)
        return await self.receive(len(commands), timeout)

    def _set_timeout(self, timeout: Optional[float]) -> None:
        # redis-py would connect again by itself.
        if self._connection._sock is None:
            raise ConnectionResetError("the connection is closed")
        if timeout != self._timeout:
            self._connection._sock.settimeout(timeout)
            self._timeout = timeout

    async def send(self, commands: Sequence[Command]) -> None:
        self._connection.send_packed_command([pack(commands)], check_health=False)

    async def receive(self, count: int, timeout: Optional[float]) -> list[Any]:
        self._set_timeout(timeout)
        replies = []
        for _ in range(count):
            try:
                replies.append(self._connection.read_response())
            except ResponseError as error:
                replies.append(error)
        return replies

    async def is_readable(self, timeout: float) -> bool:
        readable = bool(self._connection.can_read(timeout))
        # redis-py has set the socket's time-out for it.
        self._timeout = -1.0
        return readable

    @property
    def is_open(self) -> bool:
        return self._connection._sock is not None

    def fileno(self) -> int:
        """Descriptor of the socket; -1 when it is closed."""
        sock = self._connection._sock
        return -1 if sock is None else int(sock.fileno())

    def abort(self) -> None:
        self._connection.disconnect()

    def rest(self) -> None:
        pass

    async def read_pushes(self) -> bool:
        connection = self._connection
        try:
            while connection._sock is not None and connection.can_read(0):
                # A frame has begun to arrive, so the rest is on its way.
                connection._sock.settimeout(1.0)
                connection.read_response(push_request=True)
        except BROKEN:
            self.abort()
        except Exception:
            log.exception("what %s sends cannot be read; its connection is closed", self.address)
            self.abort()
        # redis-py has set the socket's time-out for it.
        self._timeout = -1.0
        return connection._sock is not None


class _Unbounded:
    """A thread has one request under way, so the threads bound the requests."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        return None


_UNBOUNDED = _Unbounded()


class BlockingWorld:
    """Does everything inside of the calls."""

    def __init__(self, on_push: OnPush) -> None:
        self._on_push = on_push

    async def open(self, options: Mapping[str, Any], timeout: float) -> BlockingLink:
        given = dict(options)
        tls = given.pop("tls", False)
        kind: Any = UnixDomainSocketConnection if "path" in given else SSLConnection if tls else Connection
        connection = kind(**connection_options(kind, given, timeout))
        connection.connect()
        listen(connection._parser, self._pushed)
        return BlockingLink(connection, timeout, str(given.get("path") or f"{given.get('host')}:{given.get('port')}"))

    async def probe(self, host: str, port: int, timeout: float) -> bytes:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(QUESTION)
            return connection.recv(64)

    def _pushed(self, push: Any) -> Any:
        self._on_push(push)
        return push

    def turn(self) -> AsyncContextManager[None]:
        return _UNBOUNDED

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def forked(self) -> None:
        pass

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        run(work)
