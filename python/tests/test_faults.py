"""Lost replies, broken connections, and callers that go away. No lock may be left: the fixture looks."""

import os
import signal
import threading
import time

import pytest
import redis

import portcullis_lock
from portcullis_lock import NoLeaderError, NotPortcullisError, ReplyError
from portcullis_lock.testing import Portcullis


def quick(portcullis, **options):
    return portcullis.locks(timeout=0.2, **options)


@pytest.mark.parametrize("fault", ["DROP-REPLY", "CLOSE-AFTER", "RESET-AFTER", "CLOSE", "DROP", "DELAY-REPLY 400", "TRICKLE 4 10"])
@pytest.mark.parametrize("wait", [None, 0.3])
def test_a_lost_reply_to_an_acquire_leaves_one_hold(portcullis, fault, wait):
    with quick(portcullis) as locks:
        portcullis.faults.add("lost", fault, on="lock.acquire", times=1)
        # With an owner of its own a second hold would show.
        with locks.lock("a", wait=wait, owner="me") as grant:
            assert locks.info("a").holders[0].holds == 1 and grant.check()
        assert portcullis.faults.fired("lost") == 1
        assert locks.info("a") is None


@pytest.mark.parametrize("fault", ["DROP-REPLY", "CLOSE-AFTER", "RESET-AFTER", "CLOSE", "DROP", "DELAY-REPLY 400"])
def test_a_lost_reply_to_a_release_releases_one_hold(portcullis, fault):
    with quick(portcullis) as locks, locks.lock("a", owner="me") as outer:
        inner = locks.lock("a", owner="me").acquire()
        portcullis.faults.add("lost", fault, on="lock.release", times=1)
        inner.release()
        assert portcullis.faults.fired("lost") == 1
        assert locks.info("a").holders[0].holds == 1 and outer.check()


def test_a_wait_goes_on_over_a_new_connection_at_its_place(portcullis, spawn):
    with quick(portcullis) as locks, portcullis.client() as client:
        first = locks.lock("a").acquire()
        order = []

        def wait(name):
            with locks.lock("a", wait=20, owner=name):
                order.append(name)

        one = spawn(lambda: wait("one"))
        portcullis.clock.until_blocked(1)
        two = spawn(lambda: wait("two"))
        portcullis.clock.until_blocked(2)
        waiter = locks.info("a").fields["waiters"][1]["client"]
        client.execute_command("CLIENT", "KILL", "ID", waiter)
        deadline = time.monotonic() + 5
        while [entry["client"] for entry in locks.info("a").fields["waiters"]][1:] in ([], [waiter]):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        first.release()
        one.result(), two.result()
        assert order == ["one", "two"]


def test_a_grant_whose_reply_is_lost_when_the_wait_ends_is_found(portcullis):
    with quick(portcullis) as locks:
        portcullis.faults.add("lost", "DROP-REPLY", on="lock.acquire", times=1)
        with locks.lock("a", wait=0.01) as grant:
            assert grant.check()


def test_a_server_that_restarts_empty_is_found_again(portcullis):
    with quick(portcullis) as locks:
        with locks.lock("a"):
            pass
        portcullis.restart()
        with locks.lock("a") as grant:
            assert grant.check()


def test_nothing_but_the_url_is_wrong_and_the_error_comes_at_once():
    begun = time.monotonic()
    with pytest.raises(redis.exceptions.ConnectionError, match="127.0.0.1:1.*Start the server with `portcullis serve`"):
        portcullis_lock.connect("redis://127.0.0.1:1").lock("a").acquire()
    with pytest.raises(redis.exceptions.ConnectionError, match="Start the server with `portcullis serve`"):
        portcullis_lock.connect("unix:///nowhere/portcullis.sock").lock("a").acquire()
    assert time.monotonic() - begun < 1
    with pytest.raises(NoLeaderError, match="no node leads: 127.0.0.1:1 cannot be reached.*127.0.0.1:2 cannot"):
        portcullis_lock.connect("redis://127.0.0.1:1,127.0.0.1:2", retry_for=0.1).lock("a").acquire()


def test_a_server_that_has_gone_is_named_when_the_wait_ends(portcullis_proc):
    with Portcullis(program=portcullis_proc.program) as server:
        locks = server.locks(retry_for=0.1)
        locks.ping()
    # It is asked for again until the wait is over.
    begun = time.monotonic()
    with pytest.raises(redis.exceptions.ConnectionError, match=f"127.0.0.1:{server.port}.*could be reached before"):
        locks.lock("a", wait=0.3).acquire()
    assert 0.3 <= time.monotonic() - begun < 2


def test_a_slow_handshake_is_tried_again(portcullis):
    with portcullis.locks(timeout=0.15) as locks:
        portcullis.faults.add("slow", "DELAY 400", on="hello", times=1)
        with locks.lock("a") as grant:
            assert grant.check()
        assert portcullis.faults.fired("slow") == 1


def test_a_request_is_given_up_when_the_server_is_away_for_too_long(portcullis):
    with quick(portcullis, retry_for=0.3) as locks:
        locks.ping()
        portcullis.faults.add("mute", "DROP", on="lock.acquire")
        begun = time.monotonic()
        with pytest.raises(redis.exceptions.TimeoutError):
            locks.lock("a").acquire()
        assert 0.3 <= time.monotonic() - begun < 2


def test_a_request_that_was_given_up_is_withdrawn_when_the_server_is_back(portcullis):
    with quick(portcullis, retry_for=0.3) as locks:
        locks.ping()
        portcullis.faults.add("lost", "DROP-REPLY", on="lock.acquire")
        with pytest.raises(redis.exceptions.TimeoutError):
            locks.lock("a").acquire()
        portcullis.faults.reset()
        with locks.lock("a", wait=5):
            pass


@pytest.fixture
def interrupt():
    """Sends Ctrl-C to the main thread as soon as a condition holds."""
    # A shell lets its jobs in the background ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(condition):
        def run():
            deadline = time.monotonic() + 5
            while not condition() and time.monotonic() < deadline:
                time.sleep(0.002)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=run, daemon=True).start()

    yield interrupt
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_takes_a_waiter_out_of_the_queue(portcullis, locks, interrupt):
    with locks.lock("a"):
        interrupt(lambda: portcullis.clock.info()["blocked-clients"] == 1)
        with pytest.raises(KeyboardInterrupt):
            locks.lock("a", wait=30).acquire()
        assert locks.info("a").waiters == ()
    with locks.lock("a"):
        pass


def test_a_grant_that_races_with_ctrl_c_is_given_back(portcullis, locks, interrupt):
    portcullis.faults.add("late", "DELAY-REPLY 20000", on="lock.acquire", client="*", times=1)
    other = portcullis.client()
    interrupt(lambda: other.exists("a"))
    with pytest.raises(KeyboardInterrupt):
        locks.lock("a").acquire()
    assert not other.exists("a")
    other.close()


def test_ctrl_c_during_a_release_releases(portcullis, interrupt):
    with portcullis.locks(timeout=3) as locks:
        grant = locks.lock("a").acquire()
        portcullis.faults.add("late", "DROP", on="lock.release", times=1)
        interrupt(lambda: portcullis.faults.fired("late") == 1)
        with pytest.raises(KeyboardInterrupt):
            grant.release()
        assert locks.info("a") is None


def test_a_server_without_locks_is_named(portcullis, locks):
    portcullis.faults.add("redis", ("ERROR", "ERR unknown command 'LOCK.ACQUIRE', with args beginning with: 'a'"), on="lock.acquire")
    with pytest.raises(NotPortcullisError, match=r"is Redis 7\.4\.2 and has no LOCK commands: start `portcullis serve`"):
        locks.lock("a").acquire()


def test_a_follower_is_named(portcullis, locks):
    portcullis.faults.add("follower", ("ERROR", "READONLY You can't write against a read only replica."), on="lock.acquire")
    with portcullis.locks(retry_for=0.1) as locks, pytest.raises(NoLeaderError, match="Give the URL of all nodes"):
        locks.lock("a").acquire()


ELSEWHERE = [
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    "READONLY You can't write against a read only replica.",
    "READONLY You can't read from this replica, which may be late. The master is at 127.0.0.1:1.",
    "READONLY Link with MASTER is down: this node reaches no majority of its cluster, and neither reads nor writes.",
    "CLUSTERDOWN The cluster is down",
    "MOVED 1234 127.0.0.1:1",
    "MASTERDOWN Link with MASTER is down",
    "LOADING Redis is loading the dataset in memory",
]


@pytest.mark.parametrize("text", ELSEWHERE)
def test_a_node_that_does_not_lead_any_more_is_left(portcullis, text):
    with portcullis_lock.connect(f"redis://127.0.0.1:{portcullis.port},localhost:{portcullis.port}") as locks:
        for command in ("lock.acquire", "lock.release", "lock.info", "lock.check", "lock.renew"):
            portcullis.faults.add(command, ("ERROR", text), on=command, times=1)
        with locks.lock("a", wait=10) as grant:
            assert locks.info("a").holders[0].holds == 1 and grant.check() and grant.renew() > 0
        assert all(portcullis.faults.fired(command) == 1 for command in ("lock.acquire", "lock.release", "lock.info", "lock.check", "lock.renew"))


def test_an_administrator_that_unblocks_a_waiter_is_no_change_of_the_leader(portcullis, locks, spawn):
    with locks.lock("a"):
        waiting = spawn(locks.lock("a", wait=30).acquire)
        portcullis.clock.until_blocked(1)
        with portcullis.client() as client:
            assert client.execute_command("CLIENT", "UNBLOCK", locks.info("a").fields["waiters"][0]["client"], "ERROR") == 1
        with pytest.raises(ReplyError, match="UNBLOCKED client unblocked via CLIENT UNBLOCK"):
            waiting.result()


def test_a_wrong_password_is_no_reason_to_try_again(portcullis):
    portcullis.client().config_set("requirepass", "secret")
    try:
        with pytest.raises(redis.exceptions.AuthenticationError):
            portcullis_lock.connect(f"redis://:wrong@127.0.0.1:{portcullis.port}").lock("a", wait=30).acquire()
        with portcullis_lock.connect(f"redis://:secret@127.0.0.1:{portcullis.port}") as locks, locks.lock("a") as grant:
            assert grant.check()
    finally:
        portcullis.client(password="secret").config_set("requirepass", "")
