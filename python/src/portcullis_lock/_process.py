"""All keepers of this process, and what becomes of them in a forked child: its copies of grants and connections belong to its parent."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portcullis_lock._keeper import Keeper

number = 0
"""How many forks lie between this process and the one that has imported the package. A grant of another number is another process's."""

_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()
_guard = threading.Lock()


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
    _guard = threading.Lock()
    for keeper in keepers():
        keeper.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
