"""Renewal, loss, and what they cost."""

import os
import signal
import socket
import threading
import time

import pytest

import portcullis_lock
from portcullis_lock import NotHeldError
from portcullis_lock.testing import Portcullis
from waiting import until


@pytest.fixture
def keepers():
    """The keepers' threads that have begun in this test. Those of earlier tests linger for some seconds."""

    def keepers():
        return [thread for thread in threading.enumerate() if thread.name == "portcullis-lock" and thread not in earlier]

    earlier = []
    earlier = keepers()
    return keepers


def test_a_grant_is_renewed_for_as_long_as_it_is_held(portcullis, locks):
    with locks.lock("a", lease=0.15) as grant:
        until(lambda: locks.info("a").fields["holders"][0]["renewed"] >= 4)
        assert grant.is_held and 0 < grant.remaining() <= 0.15


def test_without_renewal_it_is_lost_when_its_lease_ends(locks):
    grant = locks.lock("a", lease=0.1, renew=False).acquire()
    told = []
    grant.on_lost(told.append)
    assert grant.lost.wait(5) and "lease ended" in grant.lost_because
    assert told == [grant] and not grant.is_held
    with pytest.raises(NotHeldError, match="lease ended"):
        grant.release()
    grant.release()
    until(lambda: locks.info("a") is None)  # This process counts the lease from before the request, and so ends it first.


def test_a_thousand_locks_are_renewed_by_one_thread(portcullis, locks, keepers):
    with portcullis.client() as client:
        before = len(client.client_list())
        grants = [locks.lock(f"n:{number}", lease=4).acquire() for number in range(1000)]
        until(lambda: all(locks.info(f"n:{number}").fields["holders"][0]["renewed"] >= 2 for number in (0, 500, 999)))
        assert all(grant.is_held for grant in grants) and len(keepers()) == 1
        assert len(client.client_list()) - before < 4, "the renewals share connections"
    for grant in grants:
        grant.release()


def test_a_lost_lock_is_told_by_a_push(portcullis, locks):
    with portcullis.client() as client:
        grant = locks.lock("a", lease=60).acquire()
        until(lambda: [link.is_watched for link in locks._core._idle] == [True])
        client.delete("a")
        assert grant.lost.wait(5), "a push tells of it long before the renewal"
        assert "deleted" in grant.lost_because and not grant.is_held
        with pytest.raises(NotHeldError, match="deleted"):
            grant.renew()
        with pytest.raises(NotHeldError):
            grant.release()


def test_a_push_is_heard_while_the_connection_waits_for_another_lock(portcullis, locks, spawn):
    with portcullis.client() as client:
        grant = locks.lock("a", lease=60).acquire()
        with portcullis_lock.connect(portcullis.url) as others, others.lock("b"):
            waiting = spawn(locks.lock("b", wait=20).acquire)
            portcullis.clock.until_blocked(1)
            client.delete("a")
            assert grant.lost.wait(5)
        waiting.result().release()
    with pytest.raises(NotHeldError):
        grant.release()


def test_a_server_out_of_reach_loses_the_grant_at_the_end_of_its_lease(portcullis):
    with Portcullis(program=portcullis.program) as server, server.locks() as locks:
        grant = locks.lock("a", lease=0.4).acquire()
        begun = time.monotonic()
        os.kill(server.pid, signal.SIGSTOP)
        assert grant.lost.wait(5)
        assert 0.3 < time.monotonic() - begun < 0.8
        assert "before a renewal reached the server" in grant.lost_because
        with pytest.raises(NotHeldError):
            grant.release()


def test_one_failed_renewal_is_repeated(portcullis, locks):
    portcullis.faults.add("once", "CLOSE", on="lock.renew", times=1)
    with locks.lock("a", lease=0.3) as grant:
        until(lambda: locks.info("a").fields["holders"][0]["renewed"] >= 2)
        assert portcullis.faults.fired("once") == 1 and grant.is_held


def test_a_callback_that_fails_is_logged_and_the_others_are_called(portcullis, locks, caplog):
    grant = locks.lock("a", lease=0.1, renew=False).acquire()
    told = []
    grant.on_lost(lambda lost: 1 / 0)
    grant.on_lost(told.append)
    assert grant.lost.wait(5)
    until(lambda: told)
    assert "ZeroDivisionError" in caplog.text
    grant.on_lost(told.append)
    assert told == [grant, grant], "a late callback is called at once"
    until(lambda: locks.info("a") is None)


def test_the_thread_ends_with_its_locks(portcullis, keepers):
    with portcullis.locks() as locks, locks.lock("a"):
        assert keepers()
    until(lambda: not keepers())


def test_the_thread_may_end_while_it_is_woken(locks, monkeypatch):
    ours, waker = socket.socketpair()
    ours.close(), waker.close()
    monkeypatch.setattr(locks._keeper, "_waker", waker)
    locks._keeper.wake()


def test_a_push_is_heard_after_the_thread_has_ended_and_begun_again(portcullis, locks, monkeypatch, keepers):
    monkeypatch.setattr("portcullis_lock._keeper_sync._LINGER", 0.05)
    with portcullis.client() as client:
        first = locks.lock("a", lease=0.2, renew=False).acquire()
        assert first.lost.wait(5)
        until(lambda: not client.exists("a") and [link.is_watched for link in locks._core._idle] == [True])
        with pytest.raises(NotHeldError):
            first.release()
        until(lambda: not keepers())
        grant = locks.lock("a", lease=60).acquire()
        time.sleep(0.2)  # Past the moment after which a grant is watched.
        client.delete("a")
        assert grant.lost.wait(5)
    with pytest.raises(NotHeldError):
        grant.release()


def test_a_grant_after_a_planned_step_of_a_released_one_is_renewed(locks, monkeypatch):
    monkeypatch.setattr("portcullis_lock._keeper_sync._LINGER", 60.0)
    for _ in range(2):
        with locks.lock("a", lease=0.6):
            pass
    with locks.lock("b", lease=0.9) as grant:
        until(lambda: locks.info("b").fields["holders"][0]["renewed"] >= 2)
        assert grant.is_held


def test_short_grants_leave_nothing_behind(locks):
    for _ in range(1000):
        locks.lock("a").acquire().release()
    assert len(locks._keeper._heap) <= 210 and not locks._keeper._by_token


def test_a_session_outlives_its_connection(portcullis, locks):
    with portcullis.client() as client, locks.lock("a", session=True, grace=5) as grant:
        before = locks.info("a").fields["holders"][0]["client"]
        client.execute_command("CLIENT", "KILL", "ID", before)
        until(lambda: locks.info("a").holders[0].gone is None and locks.info("a").fields["holders"][0]["client"] != before)
        assert grant.is_held and grant.check()
    assert locks.info("a") is None


def test_a_session_ends_with_its_process(portcullis, locks):
    other = portcullis.locks()
    grant = other.lock("a", session=True, grace=0.05, lease=60).acquire()
    other._core.abort(grant._held.link)  # As the system does when the process dies.
    with locks.lock("a", wait=5):
        pass
    other.close(release=False)


def test_a_session_that_comes_back_too_late_is_lost(portcullis, locks):
    portcullis.clock.freeze()
    grant = locks.lock("a", session=True, grace=1).acquire()
    portcullis.faults.add("away", "DROP", on="lock.session")
    with portcullis.client() as client:
        client.execute_command("CLIENT", "KILL", "ID", locks.info("a").fields["holders"][0]["client"])
    portcullis.clock.advance(1.5)
    portcullis.faults.remove("away")
    assert grant.lost.wait(5) and "its connection was closed" in grant.lost_because
    with pytest.raises(NotHeldError):
        grant.release()


def test_the_heap_forgets_what_is_released(locks):
    grants = [locks.lock(f"n:{number}", lease=600).acquire() for number in range(300)]
    for grant in grants:
        grant.release()
    assert len(locks._keeper._heap) <= 101
