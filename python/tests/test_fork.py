"""Forked children. What they have of their parent's grants are copies, and the locks are the parent's."""

import asyncio
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback

import pytest
import redis.lock

import portcullis_lock
from portcullis_lock import LockError, OtherProcessError, compat


def in_child(work):
    """Runs work in a forked child. It has to return a true value."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(30)
            code = 0 if work() else 2
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


DESCRIPTIONS = {
    "lock": lambda locks: locks.lock("a"),
    "shared": lambda locks: locks.lock("a", shared=True),
    "owner": lambda locks: locks.lock("a", owner="me"),
    "all": lambda locks: locks.all(["a", "b"]),
    "semaphore": lambda locks: locks.semaphore("a", 2),
    "session": lambda locks: locks.lock("a", session=True, grace=0.1),
}


@pytest.fixture(params=DESCRIPTIONS)
def describe(request):
    return DESCRIPTIONS[request.param]


def test_a_child_that_leaves_the_block_of_its_parent_releases_nothing(locks, describe):
    with describe(locks) as grant:

        def work():
            try:
                lock.__exit__(None, None, None)
                grant.__exit__(None, None, None)
            finally:
                gc.collect()
            return not grant.is_held and grant.remaining() == 0 and "belongs to the process" in _refusal(grant.release)

        lock = describe(locks)
        lock._entered.append((threading.get_ident(), grant))
        in_child(work)
        time.sleep(0.15)  # The grace of a session.
        assert grant.is_held and grant.check() and grant.renew() > 20
    assert locks.info("a") is None


def _refusal(call):
    with pytest.raises(OtherProcessError) as caught:
        call()
    return str(caught.value)


def test_parent_and_child_come_out_of_the_same_block(locks):
    with locks.lock("a", lease=30) as grant:
        child = os.fork()
        if child != 0:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert locks.info("a").holders[0].token == grant.token
            assert grant.check()
    if child == 0:
        os._exit(0)
    assert grant.released and locks.info("a") is None


def test_a_child_does_not_use_a_grant_of_its_parent(locks, describe):
    grant = describe(locks).acquire()

    def work():
        messages = {_refusal(call) for call in (grant.release, grant.renew, grant.check)}
        # Its token goes with the writes of a worker.
        if len(grant.tokens) == 1:
            locks.guard("ledger").write(grant)
        return len(messages) == 1 and issubclass(OtherProcessError, LockError)

    in_child(work)
    assert grant.check()
    grant.release()


def test_a_child_begins_anew(locks):
    with locks.lock("a") as grant:

        def work():
            fine = locks.lock("a").acquire() is None
            with locks.lock("b", lease=0.6) as other:
                time.sleep(0.3)
                fine = fine and other.check() and other.owner.split(":")[-2] != grant.owner.split(":")[-2]
            locks.close()
            return fine

        in_child(work)
        assert grant.check() and grant.renew() > 20


def test_a_child_that_forgets_the_copy_says_nothing(locks, recwarn):
    grants = [locks.lock("a").acquire()]

    def work():
        grants.clear()
        gc.collect()
        return not recwarn.list

    in_child(work)
    assert grants[0].check()
    grants[0].release()


def test_a_worker_of_multiprocessing(locks):
    grant = locks.lock("a").acquire()
    worker = multiprocessing.get_context("fork").Process(target=_refusal, args=(grant.release,))
    worker.start()
    worker.join(30)
    assert worker.exitcode == 0 and grant.check()
    grant.release()


def test_a_child_within_a_coroutine(portcullis):
    """The parent's event loop goes on, with its connections."""

    async def main():
        locks = await portcullis_lock.aio.connect(portcullis.url)
        async with locks.lock("a", session=True, grace=0.1) as session, locks.lock("b", lease=0.6) as grant:
            before = portcullis.client().info("stats")["total_connections_received"]
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    signal.alarm(30)
                    for copy in (session, grant):
                        for call in (copy.release, copy.renew, copy.check):
                            with pytest.raises(OtherProcessError):
                                await call()
                    for copy in (session, grant):
                        await copy.__aexit__(None, None, None)
                    del session, grant, copy, call
                    gc.collect()
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            assert await asyncio.to_thread(os.waitpid, child, 0) == (child, 0)
            await asyncio.sleep(0.5)
            assert session.is_held and grant.is_held and await session.check() and await grant.check()
            # The event loop still hears of connections that the child has copies of.
            lost = await locks.lock("c", lease=60).acquire()
            async with portcullis.async_locks() as others:
                await others.break_("c", lost.token, "ops")
            await asyncio.wait_for(lost.lost.wait(), 5)
            assert portcullis.client().info("stats")["total_connections_received"] - before < 4
        await locks.close()

    asyncio.run(main())


def test_a_child_of_asyncio_begins_anew(portcullis):
    async def main():
        async with portcullis_lock.aio.connect(portcullis.url) as locks:
            grant = await locks.lock("a").acquire()

            def child():
                async def main():
                    assert await locks.lock("a").acquire() is None
                    async with locks.lock("b"):
                        pass
                    await locks.close()
                    return True

                # The event loop that runs is the parent's.
                asyncio._set_running_loop(None)
                return asyncio.new_event_loop().run_until_complete(main())

            in_child(child)
            assert await grant.check()
            await grant.release()

    asyncio.run(main())


@pytest.mark.parametrize("kind", [compat.Lock, redis.lock.Lock])
def test_a_child_releases_a_drop_in_by_its_copy_of_the_token(portcullisdb, kind):
    """Programs that fork into the background, and those that hand a lock to a worker, rely on it."""
    lock = kind(portcullisdb, "a", timeout=30)
    assert lock.acquire()

    def work():
        fine = lock.owned() and lock.extend(10) and lock.reacquire()
        lock.release()
        return fine and not lock.locked()

    in_child(work)
    assert not lock.owned()
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        lock.release()


def test_a_child_that_leaves_the_block_of_a_drop_in_releases_nothing(portcullisdb):
    """redis-py's lock is released by that."""
    with compat.Lock(portcullisdb, "a", timeout=30) as lock:
        in_child(lambda: lock.__exit__(None, None, None) is None)
        assert lock.owned()
    assert not lock.locked()


def _sleeping_child():
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return child


@pytest.mark.parametrize("what", ["session", "waiter"])
def test_a_living_child_does_not_keep_the_connections_of_its_dead_parent(portcullis, locks, what):
    reader, writer = os.pipe()
    holder = locks.lock("a").acquire() if what == "waiter" else None
    parent = os.fork()
    if parent == 0:
        try:
            ours = portcullis_lock.connect(portcullis.url)
            if what == "session":
                grant = ours.lock("a", lease=60, session=True, grace=0.1).acquire()
            else:
                threading.Thread(target=ours.lock("a", wait=60).acquire, daemon=True).start()
                portcullis.clock.until_blocked(1)
            os.write(writer, str(_sleeping_child()).encode())
            time.sleep(60)
        finally:
            os._exit(1)
    child = int(os.read(reader, 20))
    try:
        assert locks.info("a") is not None and len(locks.info("a").waiters) == (1 if holder else 0)
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        end = time.monotonic() + 5
        while locks.info("a").waiters if holder else locks.info("a"):
            assert time.monotonic() < end, "the server does not see the end of the parent"
            time.sleep(0.01)
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(reader)
        os.close(writer)
        if holder:
            holder.release()


async def test_nor_on_asyncio(portcullis, alocks):
    async with portcullis.async_locks() as others:
        grant = await alocks.lock("a").acquire()
        client = (await others.info("a")).fields["holders"][0]["client"]
        child = _sleeping_child()
        try:
            for link in alocks._core.idle():
                link.abort()
            end = time.monotonic() + 5
            while str(client) in [line["id"] for line in _clients(portcullis)]:
                assert time.monotonic() < end, "the server does not see the end of the parent's connection"
                await asyncio.sleep(0.01)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        await grant.release()


def _clients(portcullis):
    with portcullis.client() as admin:
        return admin.client_list()


def test_a_child_closes_no_other_file_that_has_the_number_of_a_closed_connection(locks):
    with locks.lock("a"):
        pass
    (link,) = locks._core.idle()
    number = link.descriptor[0]
    link._connection._sock.close()
    reader, writer = os.pipe()
    os.dup2(reader, number)

    def work():
        os.write(writer, b"x")
        return os.read(number, 1) == b"x"

    in_child(work)
    for descriptor in {reader, writer, number}:
        os.close(descriptor)
    link.abort()
