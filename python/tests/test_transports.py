"""TLS and Unix sockets."""

import subprocess
from urllib.parse import urlsplit

import pytest
import redis
from ports import free_port

import portcullis_lock
from portcullis_lock.testing import Portcullis


@pytest.fixture(scope="module")
def server(portcullis_proc, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    certificate, key, port = folder / "cert.pem", folder / "key.pem", free_port()
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", certificate, "-subj", "/CN=localhost"]
    subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
    # With a tls-port, port 0 is no port.
    flags = ["--port", free_port(), "--tls-port", port, "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-auth-clients", "no"]
    with Portcullis(*map(str, flags), "--unixsocket", str(folder / "p.sock"), program=portcullis_proc.program) as server:
        server.by_tls = f"rediss://127.0.0.1:{port}/1?ssl_ca_certs={certificate}"
        server.by_socket = f"unix://{folder}/p.sock?db=1"
        yield server
        assert server.leaked_locks() == []


@pytest.mark.parametrize("way", ["by_tls", "by_socket"])
def test_a_lock_and_its_loss(server, way, spawn):
    with portcullis_lock.connect(getattr(server, way)) as locks, server.client(db=1) as client:
        grant = locks.lock("a", lease=60).acquire()
        waiting = spawn(locks.lock("a", wait=20).acquire)
        server.clock.until_blocked(1)
        client.delete("a")
        assert grant.lost.wait(5) and "deleted" in grant.lost_because
        waiting.result().release()


@pytest.mark.parametrize("way", ["by_tls", "by_socket"])
async def test_the_same_on_asyncio(server, way):
    async with portcullis_lock.aio.connect(getattr(server, way)) as locks:
        async with locks.lock("a", lease=60) as grant:
            assert await grant.check() and await locks.lock("a", wait=0.01).acquire() is None
    with server.client(db=1) as client:
        assert not client.exists("a")


def test_a_certificate_of_nobody_is_refused(server):
    url = server.by_tls.partition("?")[0]
    with pytest.raises(redis.exceptions.ConnectionError, match="(?i)certificate"):
        portcullis_lock.connect(url).lock("a").acquire()


def test_a_plain_connection_to_a_port_with_tls_is_named(server):
    port = urlsplit(server.by_tls).port
    with pytest.raises(portcullis_lock.WrongProtocolError, match="is a port with TLS. Use rediss://"):
        portcullis_lock.connect(f"redis://127.0.0.1:{port}").lock("a", wait=30).acquire()
