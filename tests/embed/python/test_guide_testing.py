"""The test that guide/testing.md shows."""


def test_another_client_gets_the_lock_when_its_lease_is_over(portcullis, portcullisdb):
    portcullis.clock.freeze()
    assert portcullisdb.set("lock:a", "alice", nx=True, px=10_000)
    portcullis.clock.advance(10)
    portcullis.faults.add("lost", "DROP-REPLY", on="set", client="worker-*", times=1)
    assert portcullisdb.set("lock:a", "bob", nx=True, px=10_000)
    portcullisdb.delete("lock:a")
