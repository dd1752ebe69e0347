"""A server for tests, whose clock the test moves and whose faults it chooses. The pytest fixtures of `portcullis_lock.pytest_plugin` use it.

    from portcullis_lock.testing import Portcullis

    with Portcullis() as server:
        client = server.client()
"""

from portcullis_lock._program import ProgramNotFoundError, find_program
from portcullis_lock.testing.clock import AsyncClock, Clock
from portcullis_lock.testing.faults import AsyncFaults, Faults
from portcullis_lock.testing.server import Portcullis

__all__ = ["AsyncClock", "AsyncFaults", "Clock", "Faults", "Portcullis", "ProgramNotFoundError", "find_program"]
