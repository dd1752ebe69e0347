"""The keeper's thread. It renews grants, and waits in `select` for the `lock-lost` pushes of the server on connections that have acquired grants
and that nobody uses at the moment. Another thread tells the ends of leases in time: this one may be waiting for a server that does not answer."""

from __future__ import annotations

import logging
import math
import selectors
import socket
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any, Optional, cast

from portcullis_lock._clock import now
from portcullis_lock._core import Core
from portcullis_lock._held import Held
from portcullis_lock._keeper import Keeper
from portcullis_lock._link import BROKEN, Link, run
from portcullis_lock._link_sync import BlockingLink

log = logging.getLogger("portcullis_lock")

# A grant that is younger than this is not watched: most are released before, and cost nothing that way. Pushes to it are found a little later.
_SETTLE = 0.05
# The thread ends when nothing has been kept for so many seconds.
_LINGER = 5.0


class ThreadKeeper(Keeper):
    """A keeper with a daemon thread, which starts with the first grant."""

    def __init__(self, core: Core) -> None:
        self._watch_lock = threading.RLock()
        super().__init__(core)
        core.on_abort = self._unwatch

    def _begin(self) -> None:
        super()._begin()
        self._thread: Optional[threading.Thread] = None
        self._selector: Optional[selectors.BaseSelector] = None
        self._waker: Optional[socket.socket] = None
        self._settle_at = math.inf
        """When links are looked at that are not watched yet."""
        self._unwatched: set[BlockingLink] = set()
        """Links that have acquired grants since the last look, or were in use at the last event."""
        self._sessions: dict[BlockingLink, Held] = {}
        self._ends_thread: Optional[threading.Thread] = None
        self._ends_wakes: SimpleQueue[None] = SimpleQueue()
        """Wakes the thread that tells the ends of leases. A signal handler may put something into it at any time."""
        self._flushes: list[threading.Event] = []
        """Set when all pushes that have arrived are read, and their losses told."""

    def forked(self) -> None:
        self._watch_lock = threading.RLock()
        super().forked()

    def start(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            ours, waker = socket.socketpair()
            ours.setblocking(False)
            waker.setblocking(False)
            selector = selectors.DefaultSelector()
            selector.register(ours, selectors.EVENT_READ)
            thread = threading.Thread(target=self._run, args=(ours, waker, selector), name="portcullis-lock", daemon=True)
            self._waker, self._selector, self._next = waker, selector, 0.0
            try:
                thread.start()
            except BaseException:
                # No more threads can be started, or the interpreter ends.
                if thread.ident is None:
                    self._waker = self._selector = None
                    _close(selector, ours, waker)
                    raise
                self._thread = thread
                raise
            self._thread = thread

    def wake(self) -> None:
        waker = self._waker
        if waker is not None:
            try:
                waker.send(b"w")
            except OSError:
                pass  # It has not read earlier bytes yet, and so will wake. Or it has closed the socket at its end, and nothing is kept.

    @property
    def is_watching_ends(self) -> bool:
        return self._ends_thread is not None and self._ends_thread.is_alive()

    def watch_ends(self) -> None:
        self._ends_wakes.put(None)
        with self._lock:
            if not self.is_watching_ends:
                thread = threading.Thread(target=self._tell_ends, args=(self._ends_wakes,), name="portcullis-lock-ends", daemon=True)
                thread.start()
                self._ends_thread = thread

    def _tell_ends(self, wakes: SimpleQueue[None]) -> None:
        while True:
            pause = 0.05
            try:
                pause = self.end_leases()
            except BaseException:
                # Nobody else would see what ends this thread.
                log.exception("ends of leases are not told, and are looked at again")
            try:
                wakes.get(timeout=min(pause, _LINGER))
            except Empty:
                with self._lock:
                    # In a forked child the thread is not the keeper's.
                    if self._ends_wakes is not wakes or (not self._ends and wakes.empty()):
                        self._ends_thread = None
                        return

    def acquired_on(self, link: Link) -> None:
        """Watches a link of the pool, from a moment later on."""
        watched = cast(BlockingLink, link)
        if not watched.is_watched and watched not in self._unwatched:
            with self._watch_lock:
                self._unwatched.add(watched)
            if self._settle_at == math.inf:
                self._settle_at = now() + _SETTLE
                self.start()
                if self._next > self._settle_at:
                    self._next = self._settle_at
                    self.wake()

    def watch_session(self, held: Held, link: Link) -> None:
        watched = cast(BlockingLink, link)
        with self._watch_lock:
            self._sessions[watched] = held
            self._unwatched.add(watched)
        self._settle_at = min(self._settle_at, now())
        self.start()
        self.wake()

    def flush(self, patience: float) -> None:
        """Has the thread read what has arrived, and tell of losses, and waits for that, at most so many seconds."""
        if threading.current_thread() is self._thread:
            return
        done = threading.Event()
        self._flushes.append(done)
        self.start()
        self.wake()
        done.wait(patience)

    def _run(self, ours: socket.socket, waker: socket.socket, selector: selectors.BaseSelector) -> None:
        idle_since: Optional[float] = None
        try:
            # In a forked child, and when the thread has failed to start, it is not the keeper's.
            while self._waker is waker:
                pause = self._round()
                if not self.is_idle:
                    idle_since = None
                elif idle_since is None:
                    idle_since = now()
                # It is woken when its locks are closed.
                if idle_since is not None and (self._core.closed or now() - idle_since >= _LINGER) and self._retire(waker, selector):
                    return
                # Nobody wakes it when a lost grant is released, which it may be the last to keep.
                if idle_since is not None or math.isinf(pause):
                    pause = min(pause, _LINGER)
                for key, _ in selector.select(pause):
                    if key.fileobj is ours:
                        ours.recv(4096)
                    else:
                        self._readable(key.data)
        finally:
            self._retire(waker, selector, always=True)
            _close(selector, ours, waker)

    def _round(self) -> float:
        flushes, self._flushes = self._flushes, []
        try:
            if flushes:
                self._settle()
                for link in self._core.idle():
                    if link.grants:
                        self._readable(cast(BlockingLink, link))
            pause = run(self.step())
            if self._settle_at <= now():
                self._settle_at = math.inf
                self._settle()
            pause = max(0.0, min(pause, self._settle_at - now()))
            self._next = now() + pause
            return pause
        except BROKEN as error:
            log.warning("the renewal of locks has failed, and is tried again: %s", error)
        except BaseException:
            # Nobody else would see what ends this thread.
            log.exception("the renewal of locks has failed, and is tried again")
        finally:
            for done in flushes:
                done.set()
        time.sleep(0.01)
        return 0.05

    def _retire(self, waker: socket.socket, selector: selectors.BaseSelector, always: bool = False) -> bool:
        """Ends the thread, unless a grant has come meanwhile. Returns whether it ends."""
        with self._lock:
            if self._waker is not waker:
                return True
            if not always and not self.is_idle:
                return False
            self._thread = self._waker = self._selector = None
        with self._watch_lock:
            self._unwatched.clear()
            # The next thread has a selector of its own.
            for key in selector.get_map().values():
                if isinstance(key.data, BlockingLink):
                    key.data.is_watched = False
        return True

    # Watched links. A link is read by this thread only while nobody uses it: it is taken out of the pool for that.

    def _settle(self) -> None:
        if not self._by_token:
            with self._watch_lock:
                self._unwatched = {link for link in self._unwatched if link in self._sessions}
                if not self._unwatched:
                    return
        with self._watch_lock:
            links, self._unwatched = self._unwatched, set()
        for link in links:
            self._read(link)

    def _readable(self, link: BlockingLink) -> None:
        self._unregister(link)
        self._read(link)

    def _read(self, link: BlockingLink) -> None:
        """Reads the pushes on a link that is not in use, and watches it from now on."""
        held = self._sessions.get(link)
        if held is not None:
            self._read_session(link, held)
            return
        if link.fileno() < 0:
            return
        if not self._core.take_idle(link):
            with self._watch_lock:
                self._unwatched.add(link)
            self._settle_at = min(self._settle_at, now() + _SETTLE)
        elif run(link.read_pushes()):
            self._register(link)
            self._core.give(link)
        else:
            self._core.abort(link)

    def _read_session(self, link: BlockingLink, held: Held) -> None:
        if held.released:
            self._sessions.pop(link, None)
        elif link.fileno() >= 0 and run(link.read_pushes()):
            self._register(link)
        else:
            self._core.abort(link)
            self.session_ended(held, link)

    def _register(self, link: BlockingLink) -> None:
        with self._watch_lock:
            descriptor = link.fileno()
            if self._selector is None or descriptor < 0:
                return
            try:
                self._selector.register(descriptor, selectors.EVENT_READ, link)
            except KeyError:
                self._selector.modify(descriptor, selectors.EVENT_READ, link)
            link.is_watched = True

    def _unregister(self, link: BlockingLink) -> None:
        with self._watch_lock:
            if link.is_watched:
                link.is_watched = False
                if self._selector is not None and link.fileno() >= 0:
                    try:
                        self._selector.unregister(link.fileno())
                    except (KeyError, ValueError):
                        pass  # The thread has ended meanwhile, and its selector with it.

    def _unwatch(self, link: Any) -> None:
        """Called before a link is closed: its descriptor's number will be another connection's."""
        if link.is_watched:
            self._unregister(link)
        if self._sessions:
            self._sessions.pop(link, None)
        if link in self._unwatched:
            with self._watch_lock:
                self._unwatched.discard(link)


def _close(selector: selectors.BaseSelector, *sockets: socket.socket) -> None:
    selector.close()
    for one in sockets:
        one.close()
