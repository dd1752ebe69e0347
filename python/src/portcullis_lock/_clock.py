"""The monotonic clock that leases are counted on, and the margin by which a holder counts on less than its lease.

`freezegun` replaces `time.monotonic`, also where a module has imported it by name. A lease ends on the server whatever a test's frozen clock
shows, so this package reads the system's clock by a call that neither freezegun nor time-machine replaces.
"""

from __future__ import annotations

import time
from typing import Callable, Sequence

# Windows has no clock_gettime.
_CLOCK = (time.CLOCK_MONOTONIC,) if hasattr(time, "clock_gettime") else ()

# Held as defaults and not as names of the module: freezegun goes through the names of all modules.
def now(_read: Callable[..., float] = getattr(time, "clock_gettime", time.monotonic), _clock: Sequence[int] = _CLOCK) -> float:
    """Seconds on the system's monotonic clock."""
    return _read(*_clock)


def certain(seconds: float) -> float:
    """How much of so long a lease a holder counts on. The rest is its margin: a twentieth, but no more than a second and a thousandth of the lease.
    The holder needs the margin to stop, and its clock may be slower than the server's."""
    return seconds - min(seconds / 20, 1.0 + seconds / 1000)
