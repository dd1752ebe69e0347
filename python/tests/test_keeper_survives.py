"""What the keeper survives: errors of the user's code and of the system, in whatever it is doing."""

import asyncio
import gc
import os
import signal
import threading
import time

import pytest
import redis

from portcullis_lock import _held
from portcullis_lock.compat import Lock
from waiting import until


class Vault(redis.CredentialProvider):
    """A credential provider that can fail."""

    fails = False

    def get_credentials(self):
        if self.fails:
            raise RuntimeError("vault says 500")
        return ("ann", "secret")


@pytest.fixture
def vault(portcullis):
    with portcullis.client() as admin:
        admin.execute_command("ACL", "SETUSER", "ann", "on", ">secret", "~*", "&*", "+@all")
        yield Vault()
        admin.execute_command("ACL", "DELUSER", "ann")


def kill_all_of(portcullis, user):
    with portcullis.client() as admin:
        for client in admin.client_list():
            if client["user"] == user:
                admin.execute_command("CLIENT", "KILL", "ID", client["id"])


@pytest.mark.parametrize("session", [False, True])
def test_renewals_go_on_after_the_credential_provider_has_failed(portcullis, vault, session):
    with portcullis.locks(credential_provider=vault) as locks:
        grant = locks.lock("a", lease=1.5, session=session, grace=1).acquire()
        vault.fails = True
        kill_all_of(portcullis, "ann")
        time.sleep(0.4)
        vault.fails = False
        time.sleep(2)
        assert grant.is_held and grant.check()
        grant.release()


def test_a_grant_is_lost_with_its_lease_when_the_credential_provider_fails(portcullis, vault):
    with portcullis.locks(credential_provider=vault) as locks:
        grant = locks.lock("a", lease=0.6).acquire()
        vault.fails = True
        kill_all_of(portcullis, "ann")
        assert grant.lost.wait(5) and "before a renewal reached the server" in grant.lost_because
        locks.close(release=False)
    # The process counts on less than its lease.
    with portcullis.locks() as others:
        until(lambda: others.info("a") is None)


async def test_renewals_go_on_after_all_tasks_were_cancelled(portcullis, alocks):
    renewed = await alocks.lock("a", lease=1.5).acquire()
    # The moment may be one at which the grant is being renewed.
    portcullis.faults.add("slow", ("DELAY", 150), on="lock.renew")
    for pause in (0.58, 2.75):
        await asyncio.sleep(pause)
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
    await asyncio.sleep(3)
    assert renewed.is_held and await renewed.check()
    await renewed.release()


async def test_a_keeper_that_is_cancelled_again_at_once_ends(alocks):
    grant = await alocks.lock("a", lease=0.6).acquire()
    for _ in range(3):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "a shutdown that cancels until nothing is left comes to an end"
    await grant.release()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, RuntimeError])
def test_a_callback_that_raises_ends_no_other_renewals(portcullis, locks, caplog, error):
    def fail(grant):
        raise error("no more")

    told = threading.Event()
    lost, kept = locks.lock("a", lease=0.6).acquire(), locks.lock("b", lease=0.6).acquire()
    lost.on_lost(fail)
    lost.on_lost(lambda grant: told.set())
    with portcullis.client() as admin:
        admin.delete("a")
    assert told.wait(5) and "no more" in caplog.text
    time.sleep(1)
    assert kept.is_held and kept.check()
    kept.release()


def test_a_lock_is_given_back_when_no_thread_can_be_started(portcullis, locks, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    with portcullis.locks() as others:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                locks.lock("a", lease=60).acquire()
        assert others.info("a") is None
        grant = locks.lock("a", lease=0.6).acquire()
        time.sleep(1)
        assert grant.is_held and grant.check()
        grant.release()


def test_a_forgotten_drop_in_that_was_lost_is_not_kept(portcullis, portcullisdb):
    lock = Lock(portcullisdb, "a")
    lock.acquire()
    keeper = lock._keeper
    held = lock.grant._held
    del lock
    gc.collect()
    assert held in keeper.live()
    portcullisdb.delete("a")
    until(lambda: held not in keeper.live(), 10)


def test_a_grant_that_is_dropped_takes_no_other_one_of_its_token_along(locks):
    keeper = locks._keeper
    grant = locks.lock("a").acquire()
    other = _held.Held(grant._held.request, "somebody", "1", grant._held.tokens, grant._held.deadline)
    keeper.drop(other)
    assert keeper.live() == [grant._held]
    grant.release()


@pytest.mark.parametrize("lock", ["_lock", "_watch_lock"])
def test_a_signal_handler_releases_while_the_main_thread_is_in_the_keeper(locks, lock):
    outer = locks.lock("outer").acquire()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)  # A deadlock ends the child.
            grant = locks.lock("a").acquire()

            def handle(*_):
                with locks.lock("b"):
                    grant.release()

            signal.signal(signal.SIGUSR1, handle)
            with getattr(locks._keeper, lock):
                signal.raise_signal(signal.SIGUSR1)
            os._exit(0 if grant.released else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert locks.info("a") is None
    outer.release()


def test_a_grant_that_comes_while_dead_plans_are_forgotten_is_kept(locks, monkeypatch):
    keeper, late = locks._keeper, []
    live = keeper.live

    def interrupted():
        found = live()
        if len(late) < 2:  # As a signal handler would.
            late.append(None)
            late.append(locks.lock("late", lease=0.6).acquire())
        return found

    kept = locks.lock("kept", lease=0.6).acquire()
    monkeypatch.setattr(keeper, "live", interrupted)
    with keeper._lock:
        keeper._forget_dead()
    monkeypatch.undo()
    assert {entry[2] for entry in keeper._heap} == {kept._held, late[1]._held}
    time.sleep(1)
    for grant in (kept, late[1]):
        assert grant.is_held
        grant.release()
    for _ in range(500):
        with locks.lock("a"):
            pass
    assert len(keeper._heap) < 250
