"""Container engines: which one runs here, and the image that others are based on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from steps.work import Skipped, Work, fresh, run

# What packaging/Containerfile begins with.
BASE = "debian:bookworm-slim"
SUITE = "bookworm"
# Seconds that a registry may take to answer. Where none is reached, nothing may answer at all.
PULL_SECONDS_MAX = 120
# Limits of a container. Engines would set higher ones, which not every root may.
LIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=1024:1024")


@dataclass(frozen=True)
class Engine:
    """A container engine that has run a command in a container of the base image."""

    # How each of its commands begins, such as `podman --runtime runc`.
    command: tuple[str, ...]
    # The base image, or what stands for it.
    base: str

    def run(self, *arguments: object) -> str:
        """Runs a command of the engine."""
        return run(*self.command, *arguments)

    def tries(self, *arguments: str) -> bool:
        """Whether a command of the engine succeeds."""
        return _works(self.command, *arguments)

    def build(self, name: str, *arguments: object) -> None:
        """Builds an image. The commands in it run without a network of their own, and without namespaces where these are forbidden."""
        base = () if self.base == BASE else ("--from", self.base, "--pull-never")
        isolation = () if self.command[0] == "docker" else ("--isolation", "chroot")
        self.run("build", "-t", name, *base, *isolation, "--network", "host", *arguments)

    @contextmanager
    def removing(self, name: str, volume: str = "") -> Iterator[None]:
        """Removes a container and its volume afterwards, and before that those of an earlier run that was killed."""
        commands = [("rm", "-f", "-v", name), *([("volume", "rm", "-f", volume)] if volume else [])]

        def remove() -> None:
            # They fail if there is nothing to remove.
            for command in commands:
                subprocess.run([*self.command, *command], capture_output=True, check=False)

        remove()
        try:
            yield
        finally:
            remove()


def find(work: Work) -> Engine:
    """Finds an engine that runs containers with a network. Raises Skipped with what each one said otherwise."""
    said = []
    for command in (("podman",), ("podman", "--runtime", "crun"), ("podman", "--runtime", "runc"), ("docker",)):
        if any(shutil.which(program) is None for program in (command[0], command[-1])):
            continue
        if not _works(command, "info"):
            said.append(f"{command[0]} does not run")
            continue
        engine = Engine(command, _base(work, command))
        trial = ("run", "--rm", *LIMITS, "-p", "127.0.0.1::6379", engine.base, "true")
        done = subprocess.run([*command, *trial], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return engine
        said.append(f"{' '.join(command)}: {(done.stderr.strip() or str(done.returncode)).splitlines()[-1]}")
    raise Skipped("; ".join(said) or "there is no podman or docker")


def _base(work: Work, command: Sequence[str]) -> str:
    """The base image: from the engine's store, from a registry, or else the same system made by debootstrap."""
    made = f"localhost/portcullis-{SUITE}"
    for image in (BASE, made):
        if _works(command, "image", "inspect", image):
            return image
    if _works(command, "pull", "--quiet", BASE):
        return BASE
    if command[0] == "docker" or shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise Skipped(f"{BASE} cannot be fetched, and only root can make it, with debootstrap and podman")
    root = fresh(work.cache / f"{SUITE}.root")
    try:
        run("debootstrap", "--variant=minbase", SUITE, root)
        archive = work.cache / f"{SUITE}.tar"
        run("tar", "-C", root, "-cf", archive, ".")
        run(*command, "import", archive, made)
        archive.unlink()
    finally:
        shutil.rmtree(root)
    return made


def _works(command: Sequence[str], *arguments: str) -> bool:
    """Whether a command of the engine succeeds in time."""
    try:
        return subprocess.run([*command, *arguments], capture_output=True, check=False, timeout=PULL_SECONDS_MAX).returncode == 0
    except subprocess.TimeoutExpired:
        return False
