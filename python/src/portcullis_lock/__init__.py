"""Native locks of Portcullis: a client on redis-py, the server's program, and pytest fixtures.

    import portcullis_lock

    locks = portcullis_lock.connect("redis://127.0.0.1:6379")
    with locks.lock("order:42", lease=30, wait=5) as grant:
        ship(order, token=grant.token)

`portcullis_lock.aio` is the same for asyncio, and `portcullis_lock.compat` has `redis.lock.Lock`'s interface.
"""

from portcullis_lock import aio as aio
from portcullis_lock._sync import Grant, Guard, Latch, Lock, Locks, connect, over
from portcullis_lock.errors import (
    DeadlockError,
    LimitError,
    LockError,
    NoLeaderError,
    NotAcquiredError,
    NotHeldError,
    NotPortcullisError,
    OtherProcessError,
    ReplyError,
    StaleTokenError,
    WrongProtocolError,
)
from portcullis_lock.info import Holder, LockInfo, Throttled, Waiter

__all__ = [
    "DeadlockError", "Grant", "Guard", "Holder", "Latch", "LimitError", "Lock", "LockError", "LockInfo", "Locks", "NoLeaderError",
    "NotAcquiredError", "NotHeldError", "NotPortcullisError", "OtherProcessError", "ReplyError", "StaleTokenError", "Throttled", "Waiter",
    "WrongProtocolError", "aio", "connect", "over",
]  # fmt: skip
__version__ = "0.1.0"
