"""PortcullisContainer, without Docker: a stand-in for its client runs the container's command as a process of this machine."""

import importlib
import pathlib
import re
import subprocess
import sys
import types

import pytest
import redis
from testcontainers.core import container as core
from testcontainers.core.config import ConnectionMode, testcontainers_config

import portcullis_lock.testcontainers
from portcullis_lock.testcontainers import PortcullisContainer


class Process:
    """What the stand-in makes instead of a container. It is on the loopback interface and a free port, whatever the command says."""

    id = short_id = "stand-in"
    status = "created"

    def __init__(self, program, directory, created):
        self.created = created
        self._log, self._ready = directory / "log", directory / "ready"
        self._command = [program, *created["command"], "--bind", "127.0.0.1", "--port", "0", "--dir", str(directory)]
        self._command += ["--ready-file", str(self._ready), "--end-with-stdin"]

    def start(self):
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)

    def reload(self):
        self.status = "running" if self._process.poll() is None else "exited"

    def logs(self, stdout=True, stderr=True):
        return self._log.read_bytes() if stdout else b""

    @property
    def port(self):
        return int(self._ready.read_text().rpartition(":")[2])

    def remove(self, force, v):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self.status = "removed"


@pytest.fixture
def containers(portcullis_proc, tmp_path, monkeypatch):
    """The containers that the stand-in has made."""
    made = []

    class Engine:
        def __init__(self, **options):
            self.client = types.SimpleNamespace(close=lambda: None)

        def create(self, image, **created):
            made.append(Process(portcullis_proc.program, tmp_path, {"image": image, **created}))
            return made[-1]

        def start(self, container):
            container.start()

        def get_connection_mode(self):
            return ConnectionMode.docker_host

        def host(self):
            return "127.0.0.1"

        def port(self, container_id, port):
            assert port == 6379, "the port in the container"
            return made[-1].port

    monkeypatch.setattr(core, "DockerClient", Engine)
    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)
    return made


def test_a_container_is_ready_when_it_has_started(containers):
    with PortcullisContainer() as container:
        assert container.get_client(decode_responses=True).config_get("protected-mode") == {"protected-mode": "no"}, "the host is another machine"
        with container.get_locks() as locks, locks.lock("a") as grant:
            assert grant.check() and container.get_client().type("a") == b"lock"
        assert redis.Redis.from_url(container.get_connection_url()).ping()
    created = containers[0].created
    assert created["image"] == "portcullis:latest" and created["ports"] == {"6379": None}
    assert created["command"] == ["serve", "--bind", "0.0.0.0", "--port", "6379", "--test-mode", "--protected-mode", "no"]
    assert containers[0].status == "removed"


def test_password_flags_and_image_are_given(containers):
    with PortcullisContainer("registry/portcullis:0.1.0", password="p@ss/w:rd", flags=["--maxclients", "77"], name="locks") as container:
        client = container.get_client(decode_responses=True)
        assert client.config_get("protected-mode") == {"protected-mode": "yes"} and client.config_get("maxclients") == {"maxclients": "77"}
        with pytest.raises(redis.exceptions.AuthenticationError):
            portcullis_lock.connect(f"redis://127.0.0.1:{containers[0].port}").ping()
        with portcullis_lock.connect(container.get_connection_url()) as locks, locks.lock("a"):
            assert client.exists("a")
    assert containers[0].created["image"] == "registry/portcullis:0.1.0" and containers[0].created["name"] == "locks"


def test_the_clock_moves_and_requests_go_wrong(containers):
    with PortcullisContainer(password="secret") as container, container.get_client() as client:
        container.clock.freeze()
        client.set("k", "v", px=10_000)
        container.clock.advance(10)
        assert not client.exists("k")
        container.faults.add("full", ("ERROR", "OOM no room"), on="set")
        with pytest.raises(redis.exceptions.ResponseError, match="no room"):
            client.set("k", "v")


async def test_on_asyncio(containers):
    with PortcullisContainer() as container:
        async with container.get_async_locks() as locks, locks.lock("a"):
            client = container.get_async_client()
            assert await client.exists("a")
            await client.aclose()


def test_a_server_that_ends_at_once_says_why(containers):
    with pytest.raises(RuntimeError, match="exited"), PortcullisContainer(flags=["--no-such-flag"]):
        pass
    assert b"no-such-flag" in containers[0].logs() and containers[0].status == "removed"


def test_the_program_of_the_guide_runs(containers, capsys):
    guide = pathlib.Path(__file__).parents[2].joinpath("guide/testing.md").read_text()
    (program,) = re.findall(r"```python\n(from portcullis_lock.testcontainers .*?)```", guide, re.DOTALL)
    exec(program, {})
    assert re.fullmatch(r"redis://127\.0\.0\.1:\d+ \d+\n", capsys.readouterr().out)


def test_without_testcontainers_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "testcontainers.core.container", None)
    with pytest.raises(ImportError, match=r'pip install "portcullis-lock\[testcontainers\]"'):
        importlib.reload(portcullis_lock.testcontainers)
    monkeypatch.undo()
    importlib.reload(portcullis_lock.testcontainers)
