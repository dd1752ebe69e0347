"""Time-outs of connections on asyncio: one timer serves all replies of a connection."""

import asyncio
import time

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from portcullis_lock._link_aio import AsyncWorld


@pytest.fixture
async def link(portcullis):
    world = AsyncWorld(lambda push: None, 1)
    link = await world.open({"host": portcullis.host, "port": portcullis.port}, 5.0)
    yield link
    link.abort()


async def test_a_short_time_out_after_a_long_one_is_short(portcullis, link):
    assert await link.exchange([("PING",)], 60.0) == ["PONG"]
    portcullis.faults.add("mute", "DROP", on="echo")
    begun = time.monotonic()
    with pytest.raises(RedisTimeoutError):
        await asyncio.wait_for(link.exchange([("ECHO", "a")], 0.1), 10)
    assert time.monotonic() - begun >= 0.1


async def test_a_long_time_out_after_a_short_one_is_long(portcullis, link):
    assert await link.exchange([("PING",)], 0.1) == ["PONG"]
    assert await link.exchange([("BLPOP", "nothing", "0.3")], 10.0) == [None]
    assert await link.exchange([("BLPOP", "nothing", "0.3")], None) == [None], "without a time-out"


async def test_a_connection_that_is_idle_for_longer_than_a_time_out_is_still_good(link):
    assert await link.exchange([("PING",)], 0.05) == ["PONG"]
    await asyncio.sleep(0.15)
    assert link._timer is None, "an idle connection has no timer"
    assert await link.exchange([("PING",), ("ECHO", "a")], 5.0) == ["PONG", "a"]


async def test_each_reply_has_the_time_out(portcullis, link):
    portcullis.faults.add("slow", "DELAY-REPLY 150", on="echo")
    started = time.monotonic()
    assert await link.exchange([("ECHO", "a"), ("ECHO", "b"), ("ECHO", "c")], 5.0) == ["a", "b", "c"]
    assert time.monotonic() - started >= 0.15
