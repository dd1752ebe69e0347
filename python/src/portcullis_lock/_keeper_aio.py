"""The keeper's task. It renews grants, and reads the `lock-lost` pushes of the server on connections that nobody uses at the moment."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Optional, cast

from portcullis_lock._clock import now
from portcullis_lock._core import Core
from portcullis_lock._held import Held
from portcullis_lock._keeper import Keeper
from portcullis_lock._link import BROKEN, Link
from portcullis_lock._link_aio import AsyncLink

log = logging.getLogger("portcullis_lock")

# The task ends when nothing has been kept for so many seconds.
_LINGER = 5.0
# A task that is cancelled again within so many seconds stays ended: somebody cancels all tasks until none is left.
_RESTART = 1.0


class TaskKeeper(Keeper):
    """A keeper with a task on the running event loop, which starts with the first grant."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        core.on_abort = self._unwatch

    def _begin(self) -> None:
        super()._begin()
        self._task: Optional[asyncio.Task[None]] = None
        self._end_timer: Optional[asyncio.TimerHandle] = None
        self._end_loop: Optional[asyncio.AbstractEventLoop] = None
        """The event loop of that timer."""
        # Made with the task: before Python 3.10 an event belongs to the loop that it is made on.
        self._wakeup: Optional[asyncio.Event] = None
        self._has_timed_out = False
        self._restarted_at = -math.inf
        self._inputs: set[AsyncLink] = set()
        """Links on which something has arrived while nobody used them."""
        self._sessions: dict[AsyncLink, Held] = {}

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._next = 0.0
            self._wakeup = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run(self._wakeup))
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Starts the task again if it was cancelled with all tasks of a program that ends: blocks of locks may still go on."""
        if task is not self._task or not task.cancelled() or self.is_idle or self._core.closed or now() - self._restarted_at < _RESTART:
            return
        self._restarted_at = now()
        self.start()
        # It may be left when the event loop closes, and is nothing to report then.
        self._task._log_destroy_pending = False  # type: ignore[attr-defined]

    def wake(self) -> None:
        if self._wakeup is not None:
            try:
                self._wakeup.set()
            except RuntimeError:
                pass  # The event loop is closed, and collects what is left.

    def watch_ends(self) -> None:
        loop = asyncio.get_running_loop()
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._end_loop = loop
        self._end_timer = loop.call_later(max(0.0, self._first_end - now()), self._tell_ends)

    @property
    def is_watching_ends(self) -> bool:
        return self._end_timer is not None and self._end_loop is asyncio.get_running_loop()

    def _tell_ends(self) -> None:
        self._end_timer = None
        if not math.isinf(self.end_leases()) and self._end_timer is None:
            self.watch_ends()

    @property
    def loop(self) -> Optional[asyncio.AbstractEventLoop]:
        """The event loop of the task."""
        return None if self._task is None else self._task.get_loop()

    async def flush(self, patience: float) -> None:
        """Tells of losses whose pushes have arrived. Uses no timer, since freezegun stops those of the event loop."""
        end = now() + patience
        # The event loop reads in each turn.
        for _ in range(2):
            await asyncio.sleep(0)
        await self._read_inputs()
        await self.ask_why()
        # The task may be asking for the same.
        while any(held.pushed is not None and held.cause is None for held in self.live()) and now() < end:
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Ends the task."""
        if self._end_timer is not None:
            self._end_timer.cancel()
            self._end_timer = None
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    def acquired_on(self, link: Link) -> None:
        """Watches a link of the pool."""
        watched = cast(AsyncLink, link)
        if watched.on_input is None:
            watched.on_input = self._arrived

    def watch_session(self, held: Held, link: Link) -> None:
        watched = cast(AsyncLink, link)
        self._sessions[watched] = held
        watched.on_input = self._arrived
        watched.rest()

    def _arrived(self, link: AsyncLink) -> None:
        self._inputs.add(link)
        self.start()
        self.wake()

    async def _run(self, wakeup: asyncio.Event) -> None:
        while True:
            wakeup.clear()
            pause = 0.05
            try:
                await self._read_inputs()
                pause = await self.step()
            except BROKEN as error:
                log.warning("the renewal of locks has failed, and is tried again: %s", error)
            except Exception:
                log.exception("the renewal of locks has failed, and is tried again")
            if self._inputs:
                continue
            was_idle = self.is_idle
            # Nobody wakes it when a lost grant is released, which it may be the last to keep.
            if was_idle or math.isinf(pause):
                pause = min(pause, _LINGER)
            # A timer of the loop, and no asyncio.wait_for, which would make a task.
            timer = asyncio.get_running_loop().call_later(pause, self._timed_out)
            self._has_timed_out = False
            try:
                await wakeup.wait()
            finally:
                timer.cancel()
            if was_idle and self._has_timed_out and self.is_idle and not self._inputs:
                return

    def _timed_out(self) -> None:
        self._has_timed_out = True
        self.wake()

    async def _read_inputs(self) -> None:
        while self._inputs:
            link = self._inputs.pop()
            held = self._sessions.get(link)
            if held is not None:
                is_open = False
                try:
                    is_open = await link.read_pushes()
                    link.rest()
                finally:
                    if not is_open:
                        self._session_broke(link, held)
            elif self._core.take_idle(link):
                is_open = False
                try:
                    is_open = await link.read_pushes()
                finally:
                    if is_open:
                        self._core.give(link)
                    else:
                        self._core.abort(link)

    def _session_broke(self, link: AsyncLink, held: Held) -> None:
        self._core.abort(link)
        self.session_ended(held, link)

    def _unwatch(self, link: Link) -> None:
        watched = cast(AsyncLink, link)
        watched.on_input = None
        self._inputs.discard(watched)
        self._sessions.pop(watched, None)
