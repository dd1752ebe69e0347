"""The test of guide/python.md in a coroutine."""

import asyncio


async def test_a_cancelled_task_leaves_the_queue(portcullis, portcullis_locks_async):
    locks = portcullis_locks_async
    async with locks.lock("report"):
        task = asyncio.create_task(locks.lock("report", wait=60).acquire())
        await portcullis.clock.aio.until_blocked(1)
        task.cancel()
        await asyncio.wait([task])
        assert (await locks.info("report")).waiters == ()
