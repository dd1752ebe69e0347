"""A server in a container, for test suites that start everything with Testcontainers.

    with PortcullisContainer() as container:
        locks = container.get_locks()

The server is in test mode: `clock` moves its clock, and `faults` makes requests go wrong. Where a container is not needed,
`portcullis_lock.testing.Portcullis` is the same server in some milliseconds.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence
from urllib.parse import quote

import redis
import redis.asyncio

try:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy
except ImportError as error:
    raise ImportError(f'PortcullisContainer needs Testcontainers: pip install "portcullis-lock[testcontainers]" ({error})') from error

from portcullis_lock import _sync, aio
from portcullis_lock.testing import Clock, Faults
from portcullis_lock.testing.control import Control
from portcullis_lock.testing.losses import Losses


class PortcullisContainer(DockerContainer):
    """A container of the image that `packaging/Containerfile` makes. It is ready when `start` returns.

    port: the server's port in the container.
    password: of the default user. Without one, every client is let in.
    flags: further ones of `portcullis serve`, such as "--appendonly", "yes". `with_command` replaces the whole command.
    kwargs: those of DockerContainer: name, network, env, …
    """

    def __init__(
        self, image: str = "portcullis:latest", port: int = 6379, password: Optional[str] = None, flags: Sequence[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(image, **kwargs)
        self.port = port
        self.password = password
        self._control: Optional[Control] = None
        # The connections of the host do not come from the container's loopback interface.
        login = ["--requirepass", password] if password else ["--protected-mode", "no"]
        self.with_exposed_ports(port)
        self.with_command(["serve", "--bind", "0.0.0.0", "--port", str(port), "--test-mode", *login, *flags])
        self.waiting_for(LogMessageWaitStrategy("ready to accept connections").with_poll_interval(0.05))

    def get_connection_url(self) -> str:
        """URL of the server, for `portcullis_lock.connect` and `redis.Redis.from_url`."""
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"redis://{login}{self.get_container_host_ip()}:{self.get_exposed_port(self.port)}"

    def get_client(self, **kwargs: Any) -> redis.Redis:
        """A redis-py client of it, with the options of `redis.Redis`."""
        return redis.Redis(host=self.get_container_host_ip(), port=self.get_exposed_port(self.port), password=self.password, **kwargs)

    def get_async_client(self, **kwargs: Any) -> redis.asyncio.Redis:
        """The same for asyncio."""
        return redis.asyncio.Redis(host=self.get_container_host_ip(), port=self.get_exposed_port(self.port), password=self.password, **kwargs)

    def get_locks(self, **options: Any) -> _sync.Locks:
        """Native locks of it, with the options of `portcullis_lock.connect`."""
        return _sync.connect(self.get_connection_url(), **options)

    def get_async_locks(self, **options: Any) -> aio.Connecting:
        """The same for asyncio: `async with container.get_async_locks() as locks`."""
        return aio.connect(self.get_connection_url(), **options)

    @property
    def clock(self) -> Clock:
        """The server's clock."""
        order = self._orders().order
        return Clock(order, Losses(order, self.get_container_host_ip(), int(self.get_exposed_port(self.port))))

    @property
    def faults(self) -> Faults:
        """The server's faults."""
        return Faults(self._orders().order)

    def _orders(self) -> Control:
        if self._control is None:
            self._control = Control(self.get_container_host_ip(), self.get_exposed_port(self.port), self.password)
        return self._control

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """Ends it, and removes the container."""
        if self._control is not None:
            self._control.close()
            self._control = None
        super().stop(force, delete_volume)
