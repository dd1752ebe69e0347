"""The build context of the container image; and the image, where a container engine runs."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

from steps.archive import documents
from steps.engine import BASE, LIMITS, Engine, find
from steps.lock import PATIENCE, lock
from steps.work import PACKAGING, ROOT, Failed, Work, check, copy, fresh, run

INSTRUCTIONS = {"FROM", "RUN", "COPY", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
PASSWORD = "of-this-test"


def context(work: Work) -> str:
    """Makes the build context, and checks the Containerfile against it."""
    documents(work)
    folder = fresh(_folder(work))
    copy(PACKAGING / "Containerfile", folder / "Containerfile")
    copy(work.program, folder / "portcullis", 0o755)
    for name in ("LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY.txt"):
        copy(work.stage / name, folder / name)
    _read(folder)
    return os.path.relpath(folder, ROOT)


def container(work: Work) -> str:
    """Builds the image and runs it as the guide says: a lock through a published port, a restart with the same volume, an end in order."""
    engine = find(work)
    image, name, volume = f"localhost/portcullis:{work.version}", "portcullis-dist", "portcullis-dist"
    engine.build(image, "-f", _folder(work) / "Containerfile", _folder(work))
    begin = time.monotonic()
    with engine.removing(name, volume):
        options = ("--name", name, *LIMITS, "-p", "127.0.0.1::6379", "-v", f"{volume}:/var/lib/portcullis")
        engine.run("run", "-d", *options, image, "serve", "--bind", "0.0.0.0", "--requirepass", PASSWORD, "--appendonly", "yes")
        token = _lock(engine, name)
        took = time.monotonic() - begin
        user = engine.run("exec", name, "id", "-u").strip()
        check(user == "6379", f"the program runs as the user {user}")
        engine.run("stop", "-t", str(int(PATIENCE)), name)
        code = engine.run("inspect", "-f", "{{.State.ExitCode}}", name).strip()
        check(code == "0", f"the program ended with the exit code {code}: {engine.run('logs', name)}")
        engine.run("start", name)
        later = _lock(engine, name)
        check(later > token, f"after a restart the token {later} is not later than {token}")
    size = int(engine.run("image", "inspect", "-f", "{{.Size}}", image).strip())
    return f"{' '.join(engine.command)}: a lock {took:.1f} s after the start, tokens outlive a restart; image of {size / 1e6:.0f} MB"


def _folder(work: Work) -> Path:
    return work.dist / ("container" if work.target.is_native else f"container-{work.target.debian}")


def _read(folder: Path) -> None:
    """Reads the Containerfile: known instructions, files that exist, and a user that is not root."""
    lines = [line for line in (folder / "Containerfile").read_text().splitlines() if line and not line.startswith("#")]
    words = [shlex.split(line) for line in lines]
    check(words[0] == ["FROM", BASE], f"the first instruction is not FROM {BASE}")
    for name, *arguments in words:
        check(name in INSTRUCTIONS, f"unknown instruction {name}")
        if name == "COPY":
            for source in arguments[:-1]:
                check((folder / source).exists(), f"COPY {source}: no such file in the context")
    users = [arguments[0] for name, *arguments in words if name == "USER"]
    check(users and users[-1].split(":")[0] not in ("0", "root"), "the program runs as root")


def _lock(engine: Engine, name: str) -> int:
    """Runs a lock and a script through the port that the engine has published, as soon as the server answers."""
    host, port = engine.run("port", name, "6379/tcp").split()[-1].rsplit(":", 1)
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return lock((host, int(port)), PASSWORD)
        except (OSError, ValueError, Failed):
            # Until the server listens, the engine's proxy may accept a connection and close it.
            if time.monotonic() > end:
                print(engine.run("logs", name))
                raise
            time.sleep(0.05)
