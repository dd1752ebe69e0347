"""Tells the grants of this process that a server has ended them, when a test has moved its clock or restarted it.

The server's pushes tell of it as well, but a test's next line may come before they are read. FAULT LEAKS lists all grants that the server has.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any, Callable, Dict, List, Sequence, Tuple

from portcullis_lock import _process
from portcullis_lock._held import Held
from portcullis_lock._keeper import Keeper
from portcullis_lock._keeper_aio import TaskKeeper
from portcullis_lock._keeper_sync import ThreadKeeper

# Seconds that the server has to say why grants have ended.
_PATIENCE = 2.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_REASON = "the server does not have it any more"

Ended = Dict[Keeper, List[Tuple[Held, str]]]


class Losses:
    """What a server has ended of the grants of all `Locks` of this process that have its address."""

    def __init__(self, order: Callable[..., Any], host: str, port: int) -> None:
        self._order = order
        self._nodes = {(name, port) for name in (_LOOPBACK if host in _LOOPBACK else (host,))}

    def tell(self) -> None:
        """When this returns, grants that have ended know it. Those of another thread's event loop that stands still learn of it when it goes on."""
        for keeper, ended in self._ended().items():
            if isinstance(keeper, ThreadKeeper):
                _tell(keeper, ended)
            elif isinstance(keeper, TaskKeeper):
                loop = keeper.loop
                if loop is None or not loop.is_running() or loop is _running_loop():
                    # Nothing can be awaited here.
                    _lose(keeper, ended)
                else:
                    told = asyncio.run_coroutine_threadsafe(_tell_task(keeper, ended), loop)
                    try:
                        told.result(2 * _PATIENCE)
                    except concurrent.futures.TimeoutError:
                        pass

    async def tell_aio(self) -> None:
        """The same, while the event loop goes on."""
        loop = asyncio.get_running_loop()
        for keeper, ended in (await asyncio.to_thread(self._ended)).items():
            if isinstance(keeper, TaskKeeper) and keeper.loop is loop:
                await _tell_task(keeper, ended)
            elif isinstance(keeper, ThreadKeeper):
                await asyncio.to_thread(_tell, keeper, ended)

    def _ended(self) -> Ended:
        """The grants that the server does not have, each with the lock that has ended."""
        kept = [(keeper, keeper.live()) for keeper in _process.keepers() if not self._nodes.isdisjoint(keeper.target.nodes)]
        if not any(grants for _, grants in kept):
            return {}
        leaks = [dict(zip(leak[::2], leak[1::2])) for leak in self._order("FAULT", "LEAKS")]
        tokens = {leak["token"] for leak in leaks}
        owners = {(leak["name"], leak["holder"]) for leak in leaks}
        ended: Ended = {}
        for keeper, grants in kept:
            for held in grants:
                for name, token in zip(held.request.names, held.tokens):
                    is_upgraded = held.request.may_be_upgraded and (name, held.owner) in owners
                    if token not in tokens and not is_upgraded:
                        ended.setdefault(keeper, []).append((held, name))
                        break
        return ended


def _running_loop() -> Any:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _report(keeper: Keeper, ended: Sequence[Tuple[Held, str]]) -> None:
    for held, name in ended:
        if held.pushed is None:
            keeper.ended(held, name, _REASON)


def _lose(keeper: Keeper, ended: Sequence[Tuple[Held, str]]) -> None:
    for held, _ in ended:
        keeper.lose(held, _REASON)


def _tell(keeper: ThreadKeeper, ended: Sequence[Tuple[Held, str]]) -> None:
    # First by the pushes, whose reasons say more.
    keeper.flush(_PATIENCE)
    _report(keeper, ended)
    keeper.flush(_PATIENCE)
    _lose(keeper, ended)


async def _tell_task(keeper: TaskKeeper, ended: Sequence[Tuple[Held, str]]) -> None:
    await keeper.flush(_PATIENCE)
    _report(keeper, ended)
    await keeper.flush(_PATIENCE)
    _lose(keeper, ended)
