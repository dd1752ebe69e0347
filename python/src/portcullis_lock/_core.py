"""Connections to the leader, the pool of them, and commands that are sent again when a connection breaks.

A connection has one user at a time: a waiting command occupies its connection, so nobody may share it. The pool has no upper limit, since a
limit would let waiters keep the holder from releasing; it keeps at most `idle_max` unused connections.
"""

from __future__ import annotations

import itertools
import math
import os
import socket
import ssl
import uuid
from typing import Any, Callable, Optional, Sequence

from redis.exceptions import AuthenticationError, ClusterDownError, InvalidResponse, MovedError, ReadOnlyError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from portcullis_lock import errors
from portcullis_lock._clock import now
from portcullis_lock._link import BROKEN, TIMED_OUT, Link, World, protocol_of
from portcullis_lock._request import Command
from portcullis_lock._target import Node, Target

# What a node says that does not lead, or has ceased to lead while the request waited. redis-py takes the code off from an error that it has a class
# for; which it has depends on its version. LOADING is a broken connection to it.
_ELSEWHERE = (ReadOnlyError, MovedError, ClusterDownError)
_ELSEWHERE_TEXTS = ("READONLY ", "MOVED ", "CLUSTERDOWN ", "MASTERDOWN ", "UNBLOCKED force unblock ")

# First and longest pause between two attempts to connect, in seconds.
_PAUSE, _PAUSE_MAX = 0.01, 0.2
# Seconds that a request with a wait may take longer than its wait.
LATE = 1.0
# The same for the attempts to release a lock of one server that refuses connections. Its restart takes less.
_RELEASE_FOR = 2.0
# An attempt to renew takes less time only if less is left of the lease.
_ATTEMPT_MIN = 0.25
_UNREACHABLE = (ConnectionRefusedError, socket.gaierror, FileNotFoundError)


def _is_distrust(error: Optional[BaseException]) -> bool:
    """Whether the check of a server's certificate has failed."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def _part(end: float, share: int) -> float:
    """The time that one of so many has, in seconds."""
    return min(2.0, max(0.25, (end - now()) / share))


class Backoff:
    """Pauses between attempts, each twice the one before."""

    def __init__(self) -> None:
        self._next = _PAUSE

    def next(self) -> float:
        pause, self._next = self._next, min(self._next * 2, _PAUSE_MAX)
        return pause


class Core:
    """State that all locks of one `connect` share."""

    def __init__(self, target: Target, world: World, *, timeout: float, retry_for: float, idle_max: int) -> None:
        self.target = target
        self.world = world
        self.timeout = timeout
        self.retry_for = retry_for
        self.has_connected = False
        self.closed = False
        self.on_abort: Callable[[Any], None] = lambda link: None
        """Called before a connection is closed."""
        self.on_leader: Callable[[str], None] = lambda address: None
        """Called with the address of a node that leads, when another one led before."""
        self.on_closed: Callable[[Any], None] = lambda link: None
        """Called after it."""
        self._idle_max = idle_max
        self._idle: list[Link] = []
        self._leader: Optional[Node] = None
        self._silent: Optional[Node] = None
        """A leader that did not answer in time: the others are asked before it. It may be cut off from them."""
        self._led = ""
        """Address of the last leader that was found."""
        self._looked_at = -math.inf
        """When the leader was last looked for on behalf of those who wait."""
        self._protocols: dict[Node, tuple[float, str]] = {}
        """What answered at the nodes when that was last asked."""
        self._start_names()

    def _start_names(self) -> None:
        """Begins a sequence of unique names, for owners and requests."""
        self._unique = uuid.uuid4().hex[:16]
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{self._unique}"
        self._numbers = itertools.count(1)

    def forked(self) -> None:
        """Begins anew in a forked child. The connections are the parent's."""
        self._start_names()
        self._idle = []
        self.world.forked()

    def names(self) -> tuple[str, str]:
        """A unique owner, and a unique request id."""
        number = next(self._numbers)
        return f"{self._owner}:{number}", f"{self._unique}:{number}"

    # Connections

    async def take(self, timeout: Optional[float] = None, *, alone: bool = False, for_session: bool = False) -> Link:
        """An unused connection, or a new one. Raises one of BROKEN, after one attempt.

        alone: no grant lives on it, unless there are many of those. Waits need such a one: it is closed when they are cancelled, and the server
        then takes the holders on it for dead until they have moved. for_session: no grant lives on it, since a session ends with its connection."""
        if self.closed:
            raise errors.LockError("these locks are closed: connect again")
        link = None
        if alone or for_session:
            link = next((link for link in self.idle() if not link.grants and self.take_idle(link)), None)
        if link is None and not for_session and not (alone and len(self._idle) * 2 < self._idle_max):
            try:
                link = self._idle.pop()
            except IndexError:
                pass
        if link is None:
            return await self._connect(timeout or self.timeout)
        link.reused = True
        return link

    def idle(self) -> list[Link]:
        """The connections that nobody uses."""
        return self._idle[:]

    def take_idle(self, link: Link) -> bool:
        """Takes this connection, if nobody uses it."""
        try:
            self._idle.remove(link)
        except ValueError:
            return False
        return True

    def give(self, link: Link) -> None:
        """Gives a connection back that has no request under way."""
        if not self.closed and len(self._idle) >= self._idle_max and link.grants:
            # Another one is closed, on which no grant lives.
            for other in self.idle():
                if not other.grants and self.take_idle(other):
                    self.abort(other)
                    break
        if self.closed or len(self._idle) >= self._idle_max:
            self.abort(link)
        else:
            self._idle.append(link)
            link.rest()

    def abort(self, link: Link) -> None:
        """Closes a connection."""
        self.on_abort(link)
        link.abort()
        self.on_closed(link)

    def broke(self, link: Link, error: BaseException) -> bool:
        """Closes a connection that broke. Returns whether a new attempt can be made at once: the connection was an old one, so that its end says
        little about the server. The other old ones have probably ended with it."""
        if isinstance(error, TIMED_OUT) and self._leader is not None and link.address == f"{self._leader[0]}:{self._leader[1]}":
            self._silent, self._leader = self._leader, None
        self.abort(link)
        if not link.reused:
            return False
        self.abort_idle()
        return True

    def abort_idle(self) -> None:
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return
            self.abort(link)

    async def _connect(self, timeout: float) -> Link:
        try:
            link = await (self._open(None, timeout) if self.target.is_single else self._find_leader(timeout))
        except RedisConnectionError as error:
            # An error of TLS, and that no node leads, have texts that say more.
            if isinstance(error, errors.NoLeaderError) or not isinstance(error.__context__, OSError) or isinstance(error.__context__, ssl.SSLError):
                raise
            if self.has_connected:
                advice = "The server could be reached before: look whether it still runs."
            else:
                advice = "Start the server with `portcullis serve`, or connect to the URL of one that runs."
            raise RedisConnectionError(f"{error} {advice}") from error
        self.has_connected = True
        return link

    async def _open(self, node: Optional[Node], timeout: float) -> Link:
        if node is None and self.target.path is None:
            node = self.target.nodes[0]
        options: dict[str, Any] = dict(self.target.options)
        if self.target.tls:
            options["tls"] = True
        if node is None:
            options["path"] = self.target.path
        else:
            options["host"], options["port"] = node
        try:
            return await self.world.open(options, timeout)
        except AuthenticationError as error:
            if options.get("password") or options.get("credential_provider"):
                raise
            where = self.target.path or f"{options['host']}:{options['port']}"
            advice = "The URL takes the password, as in redis://:PASSWORD@HOST:PORT or redis://USER:PASSWORD@HOST:PORT"
            raise AuthenticationError(f"{where}: {error} {advice}") from error
        except (*BROKEN, InvalidResponse) as error:
            is_heard = not isinstance(error, TIMED_OUT) and not isinstance(error.__context__, _UNREACHABLE) and not _is_distrust(error)
            if node is not None and not self.has_connected and is_heard:
                await self._refuse_wrong_protocol(node, error)
            if isinstance(error, InvalidResponse):
                raise RedisConnectionError(str(error)) from error
            raise

    async def _refuse_wrong_protocol(self, node: Node, error: Exception) -> None:
        """Raises WrongProtocolError if what answers there is no server of the URL's protocol."""
        # The attempts of one request ask once.
        asked_at, found = self._protocols.get(node, (-math.inf, ""))
        if now() - asked_at >= self.timeout:
            try:
                found = protocol_of(await self.world.probe(node[0], node[1], 1.0))
            except BROKEN:
                found = ""
            self._protocols[node] = now(), found
        where = f"{node[0]}:{node[1]}"
        if found == "HTTP":
            raise errors.WrongProtocolError(f"{where} is an HTTP server, and no Portcullis. Its port for locks is another one: 6379 unless set") from error
        if self.target.tls and found == "RESP":
            raise errors.WrongProtocolError(f"{where} is a port without TLS. Use redis:// there, or rediss:// with the server's tls-port ({error})") from error
        if not self.target.tls and found == "TLS":
            raise errors.WrongProtocolError(f"{where} is a port with TLS. Use rediss:// there ({error})") from error

    async def _find_leader(self, timeout: float) -> Link:
        """Asks the nodes in turn, beginning with the last leader, and follows what they say. One round, in which each node has its part of the time."""
        said: list[str] = []
        asked: set[Node] = set()
        is_reached = False
        distrusted: Optional[Exception] = None
        end = now() + timeout
        queue = [self._leader] if self._leader else []
        queue += await self._ask_sentinels(said, end) if self.target.sentinels else self.target.nodes
        while queue:
            node = queue.pop(0)
            if node is None or node in asked:
                continue
            if node == self._silent and any(other != node and other not in asked for other in queue):
                queue.append(node)
                continue
            if asked and now() >= end:
                said.append("there was no time to ask the others")
                break
            asked.add(node)
            where = f"{node[0]}:{node[1]}"
            share = len({other for other in queue if other not in asked}) + 1
            try:
                link = await self._open(node, _part(end, share))
            except (AuthenticationError, errors.WrongProtocolError):
                raise
            except BROKEN as error:
                if _is_distrust(error):
                    distrusted = error
                said.append(f"{where} cannot be reached ({error})")
                continue
            is_reached = True
            try:
                (role,) = await link.exchange([("ROLE",)], _part(end, share))
            except BROKEN as error:
                link.abort()
                said.append(f"{where} does not answer ({error})")
                continue
            except BaseException:
                link.abort()
                raise
            if isinstance(role, list) and role and role[0] == "master":
                self._leader, self._silent = node, None
                if self._led != link.address:
                    is_another, self._led = self._led != "", link.address
                    if is_another:
                        self.on_leader(link.address)
                return link
            link.abort()
            if isinstance(role, ResponseError):
                said.append(f"{where} answers '{role}'")
            else:
                said.append(f"{where} follows")
                if len(role) > 2 and role[1]:
                    queue.insert(0, (str(role[1]), int(role[2])))
        self._leader = None
        none = errors.NoLeaderError(f"no node leads: {'; '.join(said)}. `portcullis cluster status redis://HOST:PORT` shows what the nodes know")
        none.is_reached = is_reached
        raise none from distrusted

    async def _ask_sentinels(self, said: list[str], end: float) -> list[Node]:
        for position, (host, port) in enumerate(self.target.sentinels):
            # A part is for the leader.
            share = len(self.target.sentinels) - position + 1
            options = {**self.target.sentinel_options, "host": host, "port": port}
            if self.target.tls:
                options["tls"] = True
            link = None
            try:
                link = await self.world.open(options, min(self.timeout, 1.0, _part(end, share)))
                (reply,) = await link.exchange([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.target.service)], min(self.timeout, 1.0, _part(end, share)))
            except BROKEN as error:
                said.append(f"the sentinel {host}:{port} does not answer ({error})")
                continue
            finally:
                if link is not None:
                    link.abort()
            if isinstance(reply, list) and len(reply) == 2:
                return [(str(reply[0]), int(reply[1]))]
            said.append(f"the sentinel {host}:{port} knows no '{self.target.service}'" if reply is None else f"{host}:{port} answers '{reply}'")
        return []

    # Commands

    async def exchange(self, link: Link, commands: Sequence[Command], timeout: Optional[float]) -> list[Any]:
        """Sends commands on a connection. A reply that says that another node leads is raised as a broken connection."""
        return self._checked(link, await link.exchange(commands, timeout))

    async def exchange_waiting(self, link: Link, commands: Sequence[Command], wait: float) -> list[Any]:
        """The same for commands that wait, math.inf for ever. A leader that stands still, with its connections open, is left for the next one."""
        timeout = None if math.isinf(wait) else wait + min(self.timeout, LATE)
        if self.target.is_single or wait <= self.timeout:
            return await self.exchange(link, commands, timeout)
        end = now() + wait + min(self.timeout, LATE)
        await link.send(commands)
        while not await link.is_readable(max(0.01, min(self.timeout, end - now()))):
            if now() >= end:
                raise RedisTimeoutError(f"no reply from {link.address}")
            if await self._is_deposed(link, min(2.0, end - now())):
                raise RedisConnectionError(f"{link.address} does not lead any more")
        return self._checked(link, await link.receive(len(commands), timeout))

    async def _is_deposed(self, link: Link, timeout: float) -> bool:
        """Whether another node leads. Those who wait at the same time share the answer."""
        if now() - self._looked_at >= self.timeout:
            self._looked_at = now()
            try:
                (await self._find_leader(timeout)).abort()
            except errors.NoLeaderError:
                return False
        return self._leader is not None and link.address != f"{self._leader[0]}:{self._leader[1]}"

    def _checked(self, link: Link, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if isinstance(reply, ResponseError) and (isinstance(reply, _ELSEWHERE) or str(reply).startswith(_ELSEWHERE_TEXTS)):
                self._leader = None
                if self.target.is_single:
                    raise errors.NoLeaderError(
                        f"{link.address} does not serve locks: {reply}. Give the URL of all nodes, redis://a:6379,b:6379,c:6379, so that the leader is found"
                    )
                raise RedisConnectionError(str(reply))
        return replies

    async def call(self, commands: Sequence[Command], *, until: float, timeout: Optional[float] = None, repeat: bool = True, urgent: bool = False) -> list[Any]:
        """Sends commands, and sends them again when the connection breaks, until that time on the monotonic clock.

        Without `repeat` they are sent once, after as many attempts to connect as it takes. What is urgent does not wait for other requests' ends.
        Error replies are values."""
        return (await self.call_by(lambda _: commands, until, timeout, repeat, urgent))[0]

    async def call_by(
        self, commands: Callable[[Link], Sequence[Command]], until: float, timeout: Optional[float] = None, repeat: bool = True, urgent: bool = False
    ) -> tuple[list[Any], Link]:
        """The same for commands that depend on the connection. Returns the connection as well, which is unused again."""
        backoff = Backoff()
        while True:
            if urgent:
                answered = await self._call_once(commands, until, timeout, repeat)
            else:
                async with self.world.turn():
                    answered = await self._call_once(commands, until, timeout, repeat)
            if answered is not None:
                return answered
            await self.world.pause(backoff.next())

    async def _call_once(
        self, commands: Callable[[Link], Sequence[Command]], until: float, timeout: Optional[float], repeat: bool
    ) -> Optional[tuple[list[Any], Link]]:
        """Sends them over the old connections until one works, and then over a new one. None if that broke, and there is time for another attempt."""
        while True:
            link = None
            try:
                link = await self.take(timeout)
                asks = commands(link)
                replies = await self.exchange(link, asks, timeout or self.timeout) if asks else []
            except BROKEN as error:
                fresh = link is not None and self.broke(link, error)
                if self.is_final(error) or (link is not None and not repeat) or now() >= until:
                    raise
                if not fresh:
                    return None
            except BaseException:
                if link is not None:
                    self.abort(link)
                raise
            else:
                self.give(link)
                return replies, link

    def is_final(self, error: BaseException, waits: bool = False) -> bool:
        """Whether another attempt is useless: the login, the protocol or the certificate is wrong, or nothing has ever answered at the addresses.
        Who waits may wait for the server's start, too."""
        if isinstance(error, (AuthenticationError, errors.WrongProtocolError)) or _is_distrust(error):
            return True
        if waits or self.has_connected or isinstance(error, TIMED_OUT):
            return False
        return not error.is_reached if isinstance(error, errors.NoLeaderError) else self.target.is_single

    def patience_for(self, left: float) -> float:
        """Seconds that one attempt may take of those that are left of a lease: there must be time for another connection, and for other nodes."""
        return min(self.timeout, max(0.05, left / (2 if self.target.is_single else 4), min(left, _ATTEMPT_MIN)))

    @property
    def release_for(self) -> float:
        """Seconds for which a release is tried again. The election of another leader takes longer than a server's restart."""
        return min(self.retry_for, _RELEASE_FOR) if self.target.is_single else self.retry_for

    async def ask(self, *words: Any, name: Optional[str] = None, repeat: bool = True) -> Any:
        """Sends one command; raises its error."""
        (reply,) = await self.call([words], until=now() + self.retry_for, repeat=repeat)
        if isinstance(reply, ResponseError):
            raise await self.error_of(reply, name)
        return reply

    async def error_of(self, reply: ResponseError, name: Optional[str] = None) -> errors.LockError:
        """The error for an error reply. If the server does not know locks, it says which server that is."""
        if not errors.is_unknown_command(reply):
            return errors.from_reply(reply, name)
        (info,) = await self.call([("INFO", "server")], until=now() + self.retry_for, urgent=True)
        fields = dict(line.split(":", 1) for line in str(info).splitlines() if ":" in line)
        kind = "Valkey" if fields.get("server_name") == "valkey" else "Redis"
        version = fields.get("valkey_version") or fields.get("redis_version") or "of unknown version"
        return errors.NotPortcullisError(
            f"the server at {self.target} is {kind} {version} and has no LOCK commands: start `portcullis serve`, which comes with this package, and connect to it",
            name,
        )

    def close(self) -> None:
        """Closes the unused connections. Connections in use close when their users give them back."""
        self.closed = True
        self.abort_idle()
