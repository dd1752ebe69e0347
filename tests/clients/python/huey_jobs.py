"""huey: a task queue on lists, a priority queue on sorted sets, schedules and task locks in Lua."""

import time

import redis
from huey import PriorityRedisHuey, RedisHuey
from huey.exceptions import TaskLockedException

from suite import HOST, PORT, PROTOCOL, case, main, raises

client = redis.Redis(host=HOST, port=PORT, protocol=PROTOCOL)


def drain(huey):
    while (task := huey.dequeue()) is not None:
        huey.execute(task)


@case
def tasks_run_in_order():
    huey = RedisHuey("plain", host=HOST, port=PORT, protocol=PROTOCOL, blocking=False)
    done = []
    add = huey.task()(lambda n: done.append(n) or n)
    results = [add(n) for n in range(5)]
    assert huey.pending_count() == 5
    drain(huey)
    assert done == list(range(5)) and results[4](blocking=True, timeout=2) == 4


@case
def urgent_tasks_come_first():
    huey = PriorityRedisHuey("urgent", host=HOST, port=PORT, protocol=PROTOCOL, blocking=False)
    done = []
    add = huey.task()(lambda n: done.append(n) or n)
    for n in (1, 9, 5):
        add(n, priority=n)
    drain(huey)
    assert done == [9, 5, 1], done


@case
def a_schedule_is_kept():
    huey = RedisHuey("later", host=HOST, port=PORT, protocol=PROTOCOL, blocking=False)
    add = huey.task()(lambda n: n)
    add.schedule(args=(1,), delay=3600)
    drain(huey)
    assert huey.scheduled_count() == 1


@case
def a_task_lock_excludes():
    huey = RedisHuey("locks", host=HOST, port=PORT, protocol=PROTOCOL)
    with huey.lock_task("report"):
        assert huey.is_locked("report")

        def again():
            with huey.lock_task("report"):
                pass

        raises(TaskLockedException, again)
    assert not huey.is_locked("report")


@case
def blocking_consumers_are_fed():
    huey = RedisHuey("blocking", host=HOST, port=PORT, protocol=PROTOCOL, blocking=True, read_timeout=1)
    add = huey.task()(lambda n: n)
    add(1)
    assert huey.dequeue() is not None
    start = time.monotonic()
    assert huey.dequeue() is None and time.monotonic() - start > 0.5


main(before_each=client.flushall)
