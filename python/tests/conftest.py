"""Fixtures of this suite. Those of the package come by its entry point."""

from __future__ import annotations

import threading
from typing import Any, Callable

import pytest

pytest_plugins = ["pytester"]


class Thread(threading.Thread):
    """A thread whose result, or whose error, `result` gives."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work, self._value, self._error = work, None, None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error

    def result(self, timeout: float = 60.0) -> Any:
        self.join(timeout)
        assert not self.is_alive(), "the thread does not end"
        if self._error is not None:
            raise self._error
        return self._value


@pytest.fixture
def spawn() -> Callable[[Callable[[], Any]], Thread]:
    """Runs work in a thread."""
    return Thread


@pytest.fixture
def locks(portcullis_locks):
    return portcullis_locks


@pytest.fixture
def alocks(portcullis_locks_async):
    return portcullis_locks_async
