"""Connections and pauses on asyncio."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any, AsyncContextManager, Callable, Coroutine, Mapping, Optional, Sequence

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ResponseError

from portcullis_lock import _process
from portcullis_lock._link import BROKEN, QUESTION, connection_options, listen
from portcullis_lock._request import Command
from portcullis_lock._wire import pack

log = logging.getLogger("portcullis_lock")


class AsyncLink:
    """A connection of redis-py's asyncio part, used without its pool and its retries."""

    __slots__ = ("_connection", "reused", "address", "grants", "is_busy", "on_input", "_arrival", "_reply_by", "_timer", "descriptor", "__weakref__")

    def __init__(self, connection: Any, address: str) -> None:
        self._connection = connection
        self.reused = False
        self.address = address
        self.grants = 0
        self.is_busy = True
        self.on_input: Optional[Callable[[AsyncLink], None]] = None
        """Called when bytes, or the end of the connection, arrive while nobody uses it."""
        self._arrival: Optional[asyncio.Future[None]] = None
        self._reply_by = math.inf
        """When the reply that is read must have come, on the loop's clock."""
        self._timer: Optional[asyncio.TimerHandle] = None
        # Only connecting is bounded by redis-py.
        connection.socket_timeout = None
        self._watch(connection._reader)
        sock = connection._writer.get_extra_info("socket")
        self.descriptor = _process.descriptor_of(-1 if sock is None else sock.fileno())
        _process.register_link(self)

    def _watch(self, reader: asyncio.StreamReader) -> None:
        """Wraps the methods by which the transport hands bytes, an end and an error to the reader. asyncio has no other way to hear of them without a task that
        reads, and there would be one for each connection."""

        def wrap(method: Callable[..., None]) -> Callable[..., None]:
            def arrived(*data: Any) -> None:
                method(*data)
                if self._arrival is not None:
                    _settle(self._arrival)
                if not self.is_busy and self.on_input is not None:
                    self.on_input(self)

            return arrived

        reader.feed_data = wrap(reader.feed_data)  # type: ignore[method-assign]
        reader.feed_eof = wrap(reader.feed_eof)  # type: ignore[method-assign]
        reader.set_exception = wrap(reader.set_exception)  # type: ignore[method-assign]

    async def exchange(self, commands: Sequence[Command], timeout: Optional[float]) -> list[Any]:
        await self.send(commands)
        return await self.receive(len(commands), timeout)

    async def send(self, commands: Sequence[Command]) -> None:
        connection = self._connection
        if not connection.is_connected:
            raise ConnectionResetError("the connection is closed")
        self.is_busy = True
        await connection.send_packed_command([pack(commands)], check_health=False)

    async def receive(self, count: int, timeout: Optional[float]) -> list[Any]:
        replies = []
        try:
            for _ in range(count):
                self._expect(timeout)
                try:
                    replies.append(await self._connection.read_response())
                except ResponseError as error:
                    replies.append(error)
        finally:
            self._reply_by = math.inf
        return replies

    def _expect(self, timeout: Optional[float]) -> None:
        """Sets the time by which the next reply must be there.

        A link has one timer, which is moved when it fires. redis-py would make a timer for each reply, and a task for each request."""
        if timeout is None:
            self._reply_by = math.inf
            return
        loop = asyncio.get_running_loop()
        self._reply_by = loop.time() + timeout
        if self._timer is None or self._timer.when() > self._reply_by:
            self._start_timer(loop)

    def _start_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._reply_by, self._timer_fired, loop)

    def _timer_fired(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._reply_by == math.inf:
            return  # No reply is expected.
        if loop.time() < self._reply_by:
            self._start_timer(loop)
        elif self._connection._reader is not None:
            # redis-py makes its TimeoutError of it, and closes the connection.
            self._connection._reader.set_exception(asyncio.TimeoutError())

    async def is_readable(self, timeout: float) -> bool:
        if self.has_input():
            return True
        loop = asyncio.get_running_loop()
        arrival = self._arrival = loop.create_future()
        timer = loop.call_later(timeout, _settle, arrival)
        try:
            await arrival
        finally:
            timer.cancel()
            self._arrival = None
        return self.has_input()

    def abort(self) -> None:
        """Closes the transport without waiting. redis-py's `disconnect` is a coroutine, and this is called while a task is cancelled."""
        self._reply_by = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        writer = self._connection._writer
        self._connection._reader = self._connection._writer = None
        self._connection._parser.on_disconnect()
        if writer is not None:
            writer.transport.abort()

    def rest(self) -> None:
        self.is_busy = False
        if self.on_input is not None and self.has_input():
            self.on_input(self)

    def has_input(self) -> bool:
        """Whether bytes, or the end of the connection, have arrived."""
        reader = self._connection._reader
        return reader is None or bool(reader._buffer) or reader.at_eof() or reader.exception() is not None

    @property
    def is_open(self) -> bool:
        return self._connection._reader is not None

    async def read_pushes(self) -> bool:
        connection = self._connection
        self.is_busy = True
        try:
            while connection.is_connected and self.has_input():
                if connection._reader.at_eof() or connection._reader.exception() is not None:
                    self.abort()
                    break
                # A frame has begun to arrive, so the rest is on its way.
                self._expect(1.0)
                await connection.read_response(push_request=True)
        except BROKEN:
            self.abort()
        except Exception:
            log.exception("what %s sends cannot be read; its connection is closed", self.address)
            self.abort()
        finally:
            self._reply_by = math.inf
        return bool(connection.is_connected)


def _settle(arrival: asyncio.Future[None]) -> None:
    if not arrival.done():
        arrival.set_result(None)


class AsyncWorld:
    """Connections and pauses on the running event loop."""

    def __init__(self, on_push: Callable[[Any], None], turns: int) -> None:
        self._on_push = on_push
        self._turn_count = turns
        self._turns: Optional[asyncio.Semaphore] = None
        self.tasks: set[asyncio.Task[None]] = set()
        """Clean-up that goes on after its caller was cancelled."""

    async def open(self, options: Mapping[str, Any], timeout: float) -> AsyncLink:
        given = dict(options)
        tls = given.pop("tls", False)
        kind: Any = UnixDomainSocketConnection if "path" in given else SSLConnection if tls else Connection
        connection = kind(**connection_options(kind, given, timeout))
        await connection.connect()
        pushed: Any = self._pushed
        if not hasattr(connection._parser, "set_pubsub_push_handler"):
            pushed = self._on_push  # redis-py 5.0 calls it without awaiting it
        listen(connection._parser, pushed)
        return AsyncLink(connection, str(given.get("path") or f"{given.get('host')}:{given.get('port')}"))

    async def probe(self, host: str, port: int, timeout: float) -> bytes:
        async def ask() -> bytes:
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(QUESTION)
                return await reader.read(64)
            finally:
                writer.close()

        try:
            return await asyncio.wait_for(ask(), timeout)
        except asyncio.TimeoutError as error:
            raise TimeoutError from error  # Before Python 3.11 they are two classes.

    def forked(self) -> None:
        self._turns, self.tasks = None, set()

    async def _pushed(self, push: Any) -> Any:
        self._on_push(push)
        return push

    def turn(self) -> AsyncContextManager[None]:
        # A thousand tasks that acquire at once would otherwise open a thousand connections.
        if self._turns is None:
            self._turns = asyncio.Semaphore(self._turn_count)
        return self._turns

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        await asyncio.shield(task)
