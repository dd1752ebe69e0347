"""The server's clock.

Its waits are counted on a clock that freezegun and time-machine do not replace. In coroutines use the methods of `clock.aio`: they work in a
thread, so that the event loop goes on, and need no timer of the event loop, which freezegun stops.
"""

from __future__ import annotations

import asyncio
import functools
import time
from datetime import datetime, timedelta
from typing import Any, Callable, Dict, Union, cast

from portcullis_lock._clock import now
from portcullis_lock.testing.losses import Losses

Seconds = Union[int, float, timedelta]
Order = Callable[..., Any]


def _in_coroutine() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def ms_of(seconds: Seconds) -> int:
    return round((seconds.total_seconds() if isinstance(seconds, timedelta) else seconds) * 1000)


class Clock:
    """Times are seconds, or a `timedelta`."""

    def __init__(self, order: Order, losses: Losses) -> None:
        self._order, self._losses = order, losses
        self.aio = AsyncClock(self)
        """The same methods, to be awaited."""

    def freeze(self) -> None:
        """Stops the clock."""
        self._order("CLOCK", "FREEZE")

    def resume(self) -> None:
        """Lets it run on."""
        self._order("CLOCK", "RESUME")

    def advance(self, seconds: Seconds) -> None:
        """Moves it forward. When this returns, everything due has happened, replies to waiters are sent, and grants of this process that have ended
        are lost. In a coroutine use `clock.aio.advance`: a grant on asyncio then knows why, too."""
        self._order("CLOCK", "ADVANCE", ms_of(seconds))
        self._losses.tell()

    def set(self, unix_time: Union[int, float, datetime]) -> None:
        """Moves it forward to a time, as `advance` does, or steps the wall clock back to it."""
        self._set(unix_time)
        self._losses.tell()

    def _set(self, unix_time: Union[int, float, datetime]) -> None:
        seconds = unix_time.timestamp() if isinstance(unix_time, datetime) else unix_time
        self._order("CLOCK", "SET", ms_of(seconds))

    def skew(self, seconds: Seconds) -> None:
        """Steps the wall clock alone, forward or back. Leases and TTLs do not change."""
        self._order("CLOCK", "SKEW", ms_of(seconds))

    def info(self) -> Dict[str, int]:
        """Whether it is frozen ("frozen"), its unix time ("unix-ms"), by how much its wall clock was stepped ("skew-ms"), and how many clients are
        blocked ("blocked-clients")."""
        fields = self._order("CLOCK", "INFO")
        return dict(zip(fields[::2], fields[1::2]))

    def until_blocked(self, count: int = 1, patience: float = 10.0) -> None:
        """Waits until so many clients are blocked: in BLPOP, on a lock, by a pause or by a delay. `patience` is in seconds of real time."""
        if _in_coroutine():
            raise RuntimeError("this would stop the event loop, and so the tasks that are to block: use `await clock.aio.until_blocked()`")
        self._until_blocked(count, patience)

    def _until_blocked(self, count: int, patience: float) -> None:
        end = now() + patience
        while (blocked := self.info()["blocked-clients"]) != count:
            if now() > end:
                raise AssertionError(f"{blocked} clients are blocked, and not {count}")
            time.sleep(0.0005)

    def follow(self, traveller: Any) -> None:
        """Ties the server's time to a time traveller, until the server is reset: what `time_machine.travel(…)` or `freezegun.freeze_time(…)` give,
        or the fixtures `time_machine` and `freezer`.

        The server goes to the traveller's time now, and with each `shift`, `move_to` and `tick`. It stands still while the traveller does."""
        self._go_along()
        for name in ("shift", "move_to", "tick"):
            move = getattr(traveller, name, None)
            if callable(move):
                setattr(traveller, name, self._along(move))

    def _along(self, move: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(move)
        def moved(*args: Any, **kwargs: Any) -> Any:
            result = move(*args, **kwargs)
            self._go_along()
            return result

        return moved

    def _go_along(self) -> None:
        before = time.time()
        time.sleep(0.002)
        after = time.time()
        self._order("CLOCK", "FREEZE" if before == after else "RESUME")
        self.set(after)


class AsyncClock:
    """The clock for coroutines."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def freeze(self) -> None:
        """Stops the clock."""
        await asyncio.to_thread(self._clock.freeze)

    async def resume(self) -> None:
        """Lets it run on."""
        await asyncio.to_thread(self._clock.resume)

    async def advance(self, seconds: Seconds) -> None:
        """Moves it forward, as `Clock.advance`."""
        await asyncio.to_thread(self._clock._order, "CLOCK", "ADVANCE", ms_of(seconds))
        await self._clock._losses.tell_aio()

    async def set(self, unix_time: Union[int, float, datetime]) -> None:
        """Moves it to a time, as `Clock.set`."""
        await asyncio.to_thread(self._clock._set, unix_time)
        await self._clock._losses.tell_aio()

    async def skew(self, seconds: Seconds) -> None:
        """Steps the wall clock alone."""
        await asyncio.to_thread(self._clock.skew, seconds)

    async def info(self) -> Dict[str, int]:
        """What `Clock.info` returns."""
        return cast(Dict[str, int], await asyncio.to_thread(self._clock.info))

    async def until_blocked(self, count: int = 1, patience: float = 10.0) -> None:
        """Waits until so many clients are blocked, while the event loop goes on."""
        await asyncio.to_thread(self._clock._until_blocked, count, patience)
