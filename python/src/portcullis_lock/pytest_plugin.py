"""pytest fixtures. pytest loads them by itself where this package is installed.

portcullis_proc          the server's process, one for each run and for each worker of pytest-xdist
portcullis               the server, emptied; a test that leaves a lock held fails
portcullisdb             a redis-py client of it
portcullis_locks         native locks of it
portcullisdb_async       the same two for asyncio; with pytest-asyncio
portcullis_locks_async

Each worker of pytest-xdist has a server of its own, since a test moves the clock and the faults of a whole server. It starts in a few milliseconds.
"""

from __future__ import annotations

from typing import Iterator, List, Optional

import pytest
import redis

from portcullis_lock import Locks
from portcullis_lock.testing import Portcullis, ProgramNotFoundError, find_program

_HELP_EXEC = "the program portcullis; without it the variable PORTCULLIS, the scripts of this environment and the PATH are asked"
_HELP_ARGS = "further flags of `portcullis serve`"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("portcullis")
    group.addoption("--portcullis-exec", dest="portcullis_exec", help=_HELP_EXEC)
    parser.addini("portcullis_exec", _HELP_EXEC, default=None)
    parser.addini("portcullis_args", _HELP_ARGS, type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "leaks_locks: locks may be held when the test ends")
    if config.pluginmanager.hasplugin("asyncio"):
        from portcullis_lock import _pytest_asyncio

        config.pluginmanager.register(_pytest_asyncio, "portcullis-asyncio")


@pytest.fixture(scope="session")
def portcullis_args(pytestconfig: pytest.Config) -> List[str]:
    """Further flags of `portcullis serve`. Override it to give your own."""
    return list(pytestconfig.getini("portcullis_args"))


@pytest.fixture(scope="session")
def portcullis_proc(pytestconfig: pytest.Config, portcullis_args: List[str]) -> Iterator[Portcullis]:
    """The server of this run."""
    program: Optional[str] = pytestconfig.getoption("portcullis_exec") or pytestconfig.getini("portcullis_exec")
    missing = ""
    try:
        program = find_program(program)
    except ProgramNotFoundError as error:
        missing = str(error)
    if missing:
        pytest.fail(missing, pytrace=False)
    with Portcullis(*portcullis_args, program=program) as server:
        yield server


@pytest.fixture
def portcullis(portcullis_proc: Portcullis, request: pytest.FixtureRequest) -> Iterator[Portcullis]:
    """The server, emptied. No lock may be held when the test and its fixtures have ended, unless it is marked with `leaks_locks`."""
    portcullis_proc.reset()
    yield portcullis_proc
    if request.node.get_closest_marker("leaks_locks") is None:
        leaks = portcullis_proc.leaked_locks()
        if leaks:
            more = [f"and {len(leaks) - 20} more"] if len(leaks) > 20 else []
            pytest.fail(f"{request.node.nodeid} leaves locks held:\n  " + "\n  ".join([*leaks[:20], *more]), pytrace=False)


@pytest.fixture
def portcullisdb(portcullis: Portcullis) -> Iterator[redis.Redis]:
    """A redis-py client of the server. Its replies are strings."""
    client = portcullis.client()
    yield client
    client.close()


@pytest.fixture
def portcullis_locks(portcullis: Portcullis) -> Iterator[Locks]:
    """Native locks of the server. What a test leaves held is not released for it, and fails the test."""
    locks = portcullis.locks()
    yield locks
    locks.close(release=False)
