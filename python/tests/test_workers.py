"""64 workers on one server: no two at once, every token accepted, and no lock left behind whatever goes wrong."""

import subprocess
import sys
import textwrap

import pytest
from workers import Resource, run_tasks, run_threads

FAULTS = ["DROP-REPLY", "DELAY-REPLY 300", "CLOSE-AFTER", "RESET-AFTER", "CLOSE", "DROP"]


def add_faults(portcullis, what):
    portcullis.faults.seed(7)
    for command in ("lock.acquire", "lock.release", "lock.guard"):
        portcullis.faults.add(command, what, on=command, probability=0.02)


def test_64_threads(portcullis, locks, spawn):
    run_threads([locks], "a", 10, 30, spawn)


async def test_64_tasks(portcullis, alocks):
    await run_tasks([alocks], "a", 10, 30)


@pytest.mark.parametrize("what", FAULTS)
def test_64_threads_whose_requests_go_wrong(portcullis, spawn, what):
    with portcullis.locks(timeout=0.15) as locks:
        add_faults(portcullis, what)
        run_threads([locks], "a", 3, 0.1, spawn)
        assert sum(map(portcullis.faults.fired, ("lock.acquire", "lock.release", "lock.guard"))) > 3
        assert portcullis.leaked_locks() == []


@pytest.mark.parametrize("what", FAULTS)
async def test_64_tasks_whose_requests_go_wrong(portcullis, what):
    async with portcullis.async_locks(timeout=0.15) as locks:
        add_faults(portcullis, what)
        await run_tasks([locks], "a", 3, 0.1)
        assert portcullis.leaked_locks() == []


def test_4_processes_of_16_threads(portcullis):
    program = textwrap.dedent("""
        import sys, threading
        import portcullis_lock
        locks = portcullis_lock.connect(sys.argv[1])

        def work():
            for _ in range(10):
                with locks.lock("a", wait=30) as grant:
                    locks.guard("r").write(grant)
                    print(grant.token, flush=True)

        threads = [threading.Thread(target=work) for _ in range(16)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        locks.close()
    """)
    command = [sys.executable, "-c", program, portcullis.url]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    tokens = [int(line) for process in running for line in process.communicate(timeout=60)[0].split()]
    assert [process.returncode for process in running] == [0] * 4
    assert len(tokens) == len(set(tokens)) == 640


def test_the_resource_notices_two_at_once():
    resource = Resource()
    resource.enter(1)
    resource.enter(2)
    with pytest.raises(AssertionError, match="2 workers at once"):
        resource.verify(2)
