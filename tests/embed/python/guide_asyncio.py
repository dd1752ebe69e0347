import asyncio

import portcullis_lock


async def main():
    async with portcullis_lock.aio.connect("redis://127.0.0.1:6379") as locks:
        async with locks.lock("order:42", lease=30, wait=5) as grant:
            print(f"token {grant.token}")


asyncio.run(main())
