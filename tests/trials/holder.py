"""Holds locks by the Python package, and says what it knows of them: `held NAME TIME`, `lost NAME TIME WHY`, and at the end `over NAME TIME`.

    python3 holder.py sync|aio URL PREFIX COUNT LEASE_S GRACE_S

Times are the system's monotonic clock. It ends when its standard input does.
"""

import asyncio
import sys
import threading
import time

import portcullis_lock

print_lock = threading.Lock()


def say(what, name, *more):
    with print_lock:
        print(what, name, f"{time.monotonic():.6f}", *more, flush=True)


def options(lease, grace):
    return {"lease": float(lease), "wait": 30, "session": True, "grace": float(grace)}


def lost(grant):
    say("lost", grant.name, grant.lost_because)


def hold(url, prefix, count, lease, grace):
    locks = portcullis_lock.connect(url)
    grants = [locks.lock(f"{prefix}:{number}", **options(lease, grace)).acquire() for number in range(int(count))]
    for grant in grants:
        say("held", grant.name)
        grant.on_lost(lost)
    sys.stdin.read()
    for grant in grants:
        if grant.is_held:
            say("over", grant.name)
        try:
            grant.release()
        except Exception as error:
            print(f"{grant.name}: {error}", file=sys.stderr)


async def hold_aio(url, prefix, count, lease, grace):
    async with portcullis_lock.aio.connect(url) as locks:
        grants = [await locks.lock(f"{prefix}:{number}", **options(lease, grace)).acquire() for number in range(int(count))]
        for grant in grants:
            say("held", grant.name)
            grant.on_lost(lost)
        await asyncio.to_thread(sys.stdin.read)
        for grant in grants:
            if grant.is_held:
                say("over", grant.name)
            try:
                await grant.release()
            except Exception as error:
                print(f"{grant.name}: {error}", file=sys.stderr)


if sys.argv[1] == "sync":
    hold(*sys.argv[2:])
else:
    asyncio.run(hold_aio(*sys.argv[2:]))
