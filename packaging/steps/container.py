"""The build context of the container image, and the image where a container engine runs."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

from steps.archive import documents
from steps.work import PACKAGING, Failed, Skipped, Work, check, copy, fresh, run

INSTRUCTIONS = {"FROM", "RUN", "COPY", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


def build(work: Work) -> str:
    """Makes target/dist/container, checks the Containerfile against it, and builds the image if that is possible."""
    documents(work)
    context = fresh(work.dist / "container")
    copy(PACKAGING / "Containerfile", context / "Containerfile")
    copy(work.program, context / "portcullis", 0o755)
    for name in ("LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY.txt"):
        copy(work.stage / name, context / name)
    _read(context)
    for engine in ("podman", "buildah", "docker"):
        if shutil.which(engine) and subprocess.run([engine, "info"], capture_output=True, check=False).returncode == 0:
            run(engine, "build", "-t", f"portcullis:{work.version}", "-f", context / "Containerfile", context)
            return f"built by {engine}"
    raise Skipped("no container engine runs here; the Containerfile was read, and its files are in target/dist/container")


def _read(context: Path) -> None:
    """Reads the Containerfile: known instructions, files that exist, and a user that is not root."""
    lines = [line for line in (context / "Containerfile").read_text().splitlines() if line and not line.startswith("#")]
    words = [shlex.split(line) for line in lines]
    check(words[0][0] == "FROM", "the first instruction is not FROM")
    for name, *arguments in words:
        if name not in INSTRUCTIONS:
            raise Failed(f"unknown instruction {name}")
        if name == "COPY":
            for source in arguments[:-1]:
                check((context / source).exists(), f"COPY {source}: no such file in the context")
    users = [arguments[0] for name, *arguments in words if name == "USER"]
    check(users and users[-1].split(":")[0] not in ("0", "root"), "the program runs as root")
