"""Waiting for what must come."""

import asyncio
import time


def until(condition, patience=30.0):
    """Waits for an event that must come. `patience`, in seconds, is only for a test that has failed."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, "it does not become true"
        time.sleep(0.005)


async def until_async(condition, patience=30.0):
    """The same for a condition that is awaited."""
    end = time.monotonic() + patience
    while not await condition():
        assert time.monotonic() < end, "it does not become true"
        await asyncio.sleep(0.005)
