"""All keepers of this process, and what becomes of them in a forked child: its copies of grants and connections belong to its parent."""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from typing import TYPE_CHECKING, Protocol, Tuple

if TYPE_CHECKING:
    from portcullis_lock._keeper import Keeper

log = logging.getLogger("portcullis_lock")
Descriptor = Tuple[int, int, int]

number = 0
"""How many forks lie between this process and the one that has imported the package. A grant of another number is another process's."""

_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()
_links: weakref.WeakSet[HasDescriptor] = weakref.WeakSet()
# Re-entrant, as all locks of the package: a signal handler may interrupt the main thread while it has one.
_guard = threading.RLock()
_can_fork = hasattr(os, "register_at_fork")


class HasDescriptor(Protocol):
    """A connection."""

    descriptor: Descriptor
    """From `descriptor_of`, when it was made."""


def descriptor_of(number: int) -> Descriptor:
    """A descriptor and what it refers to, by which it is seen whether the number has another meaning later."""
    if not _can_fork or number < 0:
        return -1, 0, 0
    found = os.fstat(number)
    return number, found.st_dev, found.st_ino


def register_link(link: HasDescriptor) -> None:
    """Has the child's copy of this connection closed after a fork. The server would otherwise not see the end of the parent."""
    if _can_fork:
        with _guard:
            _links.add(link)


def _close_copies() -> None:
    """Replaces the copies of the parent's connections by a socket without a connection. A descriptor that was closed here would be closed again by its object,
    or by an event loop, when it is another file's. No protocol is spoken, and the connection is not shut down: it is the parent's."""
    with _guard:
        links = list(_links)
        _links.clear()
    if not links:
        return
    try:
        with socket.socket() as nothing:
            for link in links:
                number, device, inode = link.descriptor
                try:
                    found = os.fstat(number)
                    if inode and (found.st_dev, found.st_ino) == (device, inode):
                        os.dup2(nothing.fileno(), number, inheritable=False)
                except OSError:
                    pass  # It is closed already.
    except OSError as error:
        log.warning("a forked child keeps copies of its parent's connections: %s", error)


def register(keeper: Keeper) -> None:
    """Has `forked` called in forked children."""
    with _guard:
        _keepers.add(keeper)


def keepers() -> list[Keeper]:
    """All keepers of this process."""
    with _guard:
        return list(_keepers)


def _forked() -> None:
    global number, _guard
    number += 1
    # Another thread of the parent may have held it.
    _guard = threading.RLock()
    _close_copies()
    for keeper in keepers():
        keeper.forked()


if _can_fork:
    os.register_at_fork(after_in_child=_forked)
