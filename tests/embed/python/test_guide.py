"""The test that guide/testing.md shows."""


def test_another_client_gets_the_lock_when_its_lease_is_over(portcullis):
    client = portcullis.client()
    portcullis.clock.freeze()
    assert client.set("lock:a", "alice", nx=True, px=10_000)
    portcullis.clock.advance(10)
    portcullis.faults.add("lost", "DROP-REPLY", on="set", client="worker-*", times=1)
    assert client.set("lock:a", "bob", nx=True, px=10_000)
    client.delete("lock:a")
