"""The connection for CLOCK, FAULT and the rest of a test's orders."""

from __future__ import annotations

import threading
from typing import Any, Optional, Sequence

import redis
from redis.connection import Connection

from portcullis_lock._link import connection_options


class Control:
    """It sends nothing at connect that a fault could hit, so its orders always work. Threads can share it."""

    def __init__(self, host: str, port: int, password: Optional[str]) -> None:
        options = {**connection_options(Connection, {"password": password}, 30.0), "protocol": 2}
        self._client = redis.Redis(connection_pool=redis.ConnectionPool(host=host, port=port, **options))
        self._lock = threading.Lock()

    def order(self, *words: Any) -> Any:
        """Sends one order, and returns its reply."""
        with self._lock:
            return self._client.execute_command(*words)  # type: ignore[no-untyped-call,unused-ignore]

    def orders(self, lines: Sequence[str]) -> None:
        """Sends several orders at once, their words between blanks."""
        with self._lock:
            pipeline = self._client.pipeline(transaction=False)
            for line in lines:
                pipeline.execute_command(*line.split(" "))  # type: ignore[no-untyped-call,unused-ignore]
            pipeline.execute()

    def disconnect(self) -> None:
        """Closes the connection. The next order opens another one."""
        self._client.connection_pool.disconnect()

    def close(self) -> None:
        self._client.close()
        self.disconnect()
