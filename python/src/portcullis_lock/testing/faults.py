"""What goes wrong on the server: see FAULT in guide/testing.md of Portcullis."""

from __future__ import annotations

import asyncio
from typing import Any, List, Optional, Sequence, Union

from portcullis_lock.testing.clock import Order


class Faults:
    """Rules for requests that go wrong."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self.aio = AsyncFaults(self)
        """The same methods, to be awaited."""

    def add(
        self,
        name: str,
        what: Union[str, Sequence[Any]],
        *,
        on: Optional[str] = None,
        client: Optional[str] = None,
        probability: Optional[float] = None,
        times: Optional[int] = None,
        after: Optional[int] = None,
    ) -> None:
        """`what` in the words of FAULT ADD: "DROP-REPLY", "DELAY 500", "RESTART-AFTER LOSE 1", or `("ERROR", "OOM no room")`."""
        words: List[Any] = what.split() if isinstance(what, str) else list(what)
        options = {"ON": on, "CLIENT": client, "PROBABILITY": probability, "TIMES": times, "AFTER": after}
        for option, value in options.items():
            if value is not None:
                words += [option, value]
        self._order("FAULT", "ADD", name, *words)

    def remove(self, name: str) -> bool:
        """Removes a rule. Returns whether there was one."""
        return bool(self._order("FAULT", "DEL", name))

    def reset(self) -> None:
        """Removes all rules."""
        self._order("FAULT", "RESET")

    def seed(self, seed: int) -> None:
        """Restarts the random sequence from this seed."""
        self._order("FAULT", "SEED", seed)

    def fired(self, name: str) -> int:
        """How often a rule has fired."""
        rules = [dict(zip(rule[::2], rule[1::2])) for rule in self._order("FAULT", "LIST")]
        return next((int(rule["fired"]) for rule in rules if rule["name"] == name), 0)


class AsyncFaults:
    """The faults for coroutines."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    async def add(self, name: str, what: Union[str, Sequence[Any]], **options: Any) -> None:
        """As `Faults.add`."""
        await asyncio.to_thread(self._faults.add, name, what, **options)

    async def remove(self, name: str) -> bool:
        """As `Faults.remove`."""
        return await asyncio.to_thread(self._faults.remove, name)

    async def reset(self) -> None:
        """As `Faults.reset`."""
        await asyncio.to_thread(self._faults.reset)

    async def fired(self, name: str) -> int:
        """As `Faults.fired`."""
        return await asyncio.to_thread(self._faults.fired, name)
