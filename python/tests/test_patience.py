"""How long calls try a server that cannot be reached, and what is not tried at all."""

import asyncio
import http.server
import math
import os
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest
import redis
from ports import free_port

import portcullis_lock
from portcullis_lock import WrongProtocolError, _core
from portcullis_lock.testing import Portcullis


class Took:
    """Measures a block."""

    def __enter__(self):
        self._begun = time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self._begun


@pytest.fixture
def server(portcullis_proc):
    with Portcullis(program=portcullis_proc.program) as server:
        yield server


def kill(server):
    os.kill(server.pid, signal.SIGKILL)
    server._process.wait()


def test_a_wait_whose_server_dies_ends_in_time(server, spawn):
    locks = server.locks()
    held = locks.lock("a").acquire()
    assert held is not None
    with Took() as took:
        waiting = spawn(locks.lock("a", wait=1).acquire)
        server.clock.until_blocked(1)
        kill(server)
        with pytest.raises(redis.exceptions.ConnectionError, match="could be reached before"):
            waiting.result()
    assert 1 <= took.seconds < 2.5
    locks.close(release=False)


def test_a_wait_whose_server_stands_still_ends_in_time(server, spawn):
    locks = server.locks()
    with locks.lock("b"):
        pass
    with locks.lock("a", lease=300) as held, Took() as took:
        waiting = spawn(locks.lock("a", wait=0.5).acquire)
        server.clock.until_blocked(1)
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(redis.exceptions.TimeoutError):
            waiting.result()
        os.kill(server.pid, signal.SIGCONT)
    assert 0.5 <= took.seconds < 3 and held.released
    locks.close()


def test_a_wait_begins_before_its_server(portcullis_proc, spawn, caplog):
    port = free_port()
    locks = portcullis_lock.connect(f"redis://127.0.0.1:{port}")
    waiting = spawn(locks.lock("a", wait=30).acquire)
    time.sleep(0.3)
    command = [portcullis_proc.program, "serve", "--port", str(port), "--bind", "127.0.0.1", "--end-with-stdin"]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        waiting.result().release()
        assert "is tried again until its wait ends" in caplog.text
    finally:
        locks.close(release=False)
        started.kill(), started.wait(), started.stdin.close()


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "redis://127.0.0.1:1,127.0.0.1:2", "unix:///nowhere/p.sock"])
def test_a_server_that_was_never_there_is_tried_for_the_wait(url):
    locks = portcullis_lock.connect(url)
    with Took() as took, pytest.raises(redis.exceptions.ConnectionError):
        locks.lock("a", wait=0.5).acquire()
    assert 0.5 <= took.seconds < 1.7
    with Took() as took, pytest.raises(redis.exceptions.ConnectionError):
        locks.latch("l").wait(0.3)
    assert 0.3 <= took.seconds < 1.5
    for call in (locks.lock("a").acquire, locks.lock("a", wait=0).acquire, lambda: locks.info("a"), locks.ping):
        with Took() as took, pytest.raises(redis.exceptions.ConnectionError):
            call()
        assert took.seconds < 0.5


async def test_the_same_on_asyncio():
    async with portcullis_lock.aio.connect("redis://127.0.0.1:1") as locks:
        with Took() as took, pytest.raises(redis.exceptions.ConnectionError):
            await locks.lock("a", wait=0.5).acquire()
        assert 0.5 <= took.seconds < 1.7
        with Took() as took, pytest.raises(redis.exceptions.ConnectionError):
            await locks.lock("a").acquire()
        assert took.seconds < 0.5


def test_a_release_on_a_server_that_has_gone_is_given_up(server):
    locks = server.locks()
    grants = [locks.lock(f"n:{number}").acquire() for number in range(4)]
    kill(server)
    with Took() as took, pytest.raises(redis.exceptions.ConnectionError, match="could be reached before"):
        grants[0].release()
    assert took.seconds < 3
    # Not so long for each.
    with Took() as took:
        locks.close()
    assert took.seconds < 3


def test_without_a_wait_a_server_that_was_there_is_tried_for_a_while(server):
    locks = server.locks(retry_for=0.4)
    locks.ping()
    kill(server)
    with Took() as took, pytest.raises(redis.exceptions.ConnectionError):
        locks.lock("a").acquire()
    assert 0.4 <= took.seconds < 1.5


@pytest.fixture
def web():
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Quiet)
    server.handle_error = lambda *_: None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown(), server.server_close()


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
@pytest.mark.parametrize("wait", [None, math.inf])
def test_an_http_server_is_named_at_once(web, scheme, wait):
    with Took() as took, pytest.raises(WrongProtocolError, match=f"127.0.0.1:{web} is an HTTP server"):
        portcullis_lock.connect(f"{scheme}://127.0.0.1:{web}").lock("a", wait=wait).acquire()
    assert took.seconds < 3


async def test_an_http_server_is_named_on_asyncio(web):
    async with portcullis_lock.aio.connect(f"redis://127.0.0.1:{web}") as locks:
        with pytest.raises(WrongProtocolError, match="is an HTTP server"):
            await asyncio.wait_for(locks.lock("a", wait=math.inf).acquire(), 10)


def test_tls_on_a_plain_port_is_named(portcullis):
    with pytest.raises(WrongProtocolError, match="is a port without TLS. Use redis://"):
        portcullis_lock.connect(f"rediss://127.0.0.1:{portcullis.port}").lock("a", wait=math.inf).acquire()


async def test_tls_on_a_plain_port_is_named_on_asyncio(portcullis):
    async with portcullis_lock.aio.connect(f"rediss://127.0.0.1:{portcullis.port}") as locks:
        with pytest.raises(WrongProtocolError, match="is a port without TLS. Use redis://"):
            await asyncio.wait_for(locks.lock("a", wait=math.inf).acquire(), 10)


def test_a_missing_password_is_named(portcullis_proc):
    with Portcullis("--requirepass", "secret", program=portcullis_proc.program) as server:
        with pytest.raises(redis.exceptions.AuthenticationError, match="The URL takes the password, as in redis://:PASSWORD@HOST:PORT"):
            portcullis_lock.connect(f"redis://127.0.0.1:{server.port}").lock("a", wait=math.inf).acquire()
        with pytest.raises(redis.exceptions.AuthenticationError) as caught:
            portcullis_lock.connect(f"redis://:wrong@127.0.0.1:{server.port}").lock("a", wait=math.inf).acquire()
        assert "takes the password" not in str(caught.value)


class Silent:
    """Addresses that accept connections and never answer."""

    def __init__(self, count):
        self._sockets = [socket.socket() for _ in range(count)]
        for one in self._sockets:
            one.bind(("127.0.0.1", 0))
            one.listen(50)
        self.hosts = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in self._sockets)

    def close(self):
        for one in self._sockets:
            one.close()


@pytest.fixture
def silent():
    silent = Silent(3)
    yield silent
    silent.close()


@pytest.mark.parametrize("form", ["redis://{}", "redis+sentinel://{}/service"])
def test_a_wait_for_nodes_that_do_not_answer_ends_in_time(silent, form):
    locks = portcullis_lock.connect(form.format(silent.hosts))
    with Took() as took, pytest.raises(redis.exceptions.ConnectionError):
        locks.lock("a", wait=0.5).acquire()
    assert took.seconds < 2.5, "about a second late, and not one for each node"
    with Took() as took, pytest.raises(redis.exceptions.ConnectionError):
        locks.latch("parts").wait(0.5)
    assert took.seconds < 2.5


async def test_and_on_asyncio_a_wait_for_silent_nodes_ends_in_time(silent):
    locks = await portcullis_lock.aio.connect(f"redis://{silent.hosts}")
    with Took() as took, pytest.raises(redis.exceptions.ConnectionError):
        await locks.lock("a", wait=0.5).acquire()
    assert took.seconds < 2.5
    await locks.close()


def test_a_wait_is_no_longer_by_what_connecting_takes(portcullis, locks, monkeypatch):
    connect = locks._core._connect

    async def slowly(timeout):
        time.sleep(0.6)
        return await connect(timeout)

    with portcullis.locks() as others, others.lock("a"):
        monkeypatch.setattr(locks._core, "_connect", slowly)
        with Took() as took:
            assert locks.lock("a", wait=0.8).acquire() is None
        assert took.seconds < 1.2


def test_a_release_of_a_server_that_stands_still_ends_with_the_time_out(server):
    locks = server.locks(timeout=1)
    grant = locks.lock("a").acquire()
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(0.2)
    try:
        with Took() as took, pytest.raises(redis.exceptions.TimeoutError):
            grant.release()
        assert 0.9 < took.seconds < 2.5
    finally:
        os.kill(server.pid, signal.SIGCONT)
    locks.close(release=False)


@pytest.fixture
def impostor(tmp_path):
    """A server with TLS whose certificate nobody has signed. Counts its connections."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=other"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Counting(lambda connection: context.wrap_socket(connection, server_side=True).recv(10)) as counting:
        yield counting


class Counting:
    """Accepts connections, and answers each with a function."""

    def __init__(self, answer):
        self._answer, self.count = answer, 0
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(50)
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.count += 1
            with connection:
                try:
                    self._answer(connection)
                except OSError:
                    pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()


@pytest.mark.parametrize("others", ["", ",127.0.0.1:1"])
def test_a_certificate_that_nobody_has_signed_is_not_tried_again(impostor, others):
    locks = portcullis_lock.connect(f"rediss://127.0.0.1:{impostor.port}{others}")
    with Took() as took, pytest.raises(redis.exceptions.ConnectionError, match="certificate verify failed"):
        locks.lock("a", wait=5).acquire()
    assert took.seconds < 2 and impostor.count == 1


async def test_nor_on_asyncio(impostor):
    locks = await portcullis_lock.aio.connect(f"rediss://127.0.0.1:{impostor.port}")
    with Took() as took, pytest.raises(redis.exceptions.ConnectionError) as caught:
        await locks.lock("a", wait=5).acquire()
    assert _core._is_distrust(caught.value)  # redis-py 5.0 does not show its text.
    assert took.seconds < 2 and impostor.count == 1
    await locks.close()


def test_what_a_server_speaks_is_asked_once_for_all_attempts():
    with Counting(lambda connection: connection.recv(100)) as closes:
        probed = []
        locks = portcullis_lock.connect(f"redis://127.0.0.1:{closes.port}")
        probe = locks._core.world.probe
        locks._core.world.probe = lambda *where: probed.append(where) or probe(*where)
        with pytest.raises(redis.exceptions.ConnectionError):
            locks.lock("a", wait=0.5).acquire()
        assert len(probed) == 1 and closes.count > 3
