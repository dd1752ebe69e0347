"""Fixtures for asyncio. `pytest_plugin` registers them where pytest-asyncio is."""

from __future__ import annotations

from typing import AsyncIterator

import pytest_asyncio
import redis.asyncio

from portcullis_lock import aio
from portcullis_lock.testing import Portcullis


@pytest_asyncio.fixture
async def portcullisdb_async(portcullis: Portcullis) -> AsyncIterator[redis.asyncio.Redis]:
    """A redis-py client of the server for asyncio. Its replies are strings."""
    client = portcullis.async_client()
    yield client
    await client.aclose()


@pytest_asyncio.fixture
async def portcullis_locks_async(portcullis: Portcullis) -> AsyncIterator[aio.Locks]:
    """Native locks of the server for asyncio. What a test leaves held is not released for it, and fails the test."""
    locks = await portcullis.async_locks()
    yield locks
    await locks.close(release=False)
