"""The first test of guide/python.md."""

from concurrent.futures import ThreadPoolExecutor


def test_the_next_worker_goes_on_when_one_has_died(portcullis, portcullis_locks):
    portcullis.clock.freeze()
    dead = portcullis_locks.lock("order:42", lease=30, renew=False).acquire()  # A dead process does not renew.
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(portcullis_locks.lock("order:42", wait=60).acquire)
        portcullis.clock.until_blocked(1)  # Somebody waits now.
        portcullis.clock.advance(30)
        grant = waiting.result()
    assert grant.token > dead.token
    grant.release()
