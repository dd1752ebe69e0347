import math

import portcullis_lock
from portcullis_lock import DeadlockError, NotAcquiredError, NotHeldError, StaleTokenError

locks = portcullis_lock.connect("redis://127.0.0.1:6379")


def steps_of_an_order():
    return ["pick", "pack", "ship"]


# Without `with`, `acquire` returns a grant, or None when somebody else holds the lock. The grant is renewed while you keep it, until you release
# it. If this process ends before that, the lock ends with its lease.
grant = locks.lock("report").acquire()
if grant is not None:
    grant.release()

# A long job looks from time to time whether it still has its lock, and sends its token with each write.
with locks.lock("order:42", wait=math.inf) as grant:
    for step in steps_of_an_order():
        if grant.lost.is_set():
            raise SystemExit(f"stopped: {grant.lost_because}")
        locks.guard("orders").write(grant)
        print(step, grant.token)

# Readers together, writers alone; several locks at once; three of many; a rate.
with locks.lock("catalogue", shared=True), locks.all(["account:1", "account:2"]), locks.semaphore("printers", limit=3):
    if locks.throttle("mails:ann", max_burst=5, count=10, period=60).allowed:
        print("send")

# The lock ends two seconds after the leader has seen this process's connection end, and not with its lease. `grace` is 2 unless given.
with locks.lock("leader", lease=30, session=True, grace=2):
    print("lead")

# A lock is reentrant only for an owner that is given: both calls name the same one.
with locks.lock("tree", owner="job:7"), locks.lock("tree", owner="job:7"):
    print("both")

try:
    with locks.lock("order:42", wait=5) as grant:
        locks.guard("orders").write(grant)
except NotAcquiredError as error:
    print(error)  # the lock 'order:42' was not granted within 5.0 s: held by 'host:4711:…' at 10.0.0.7:55308 for 3.2 s, …
except DeadlockError as error:
    print(error.cycle)  # who waits for what, held by whom
except StaleTokenError:
    print("a later holder has written: this one was paused for longer than its lease")
except NotHeldError as error:
    print(error.cause)  # its lease ended 40 ms ago; broken by client 9 4 ms ago: stuck since noon; …
