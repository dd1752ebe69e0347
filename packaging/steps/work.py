"""What the steps share: folders, the version, commands, and the bound on the time of an installation."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from steps.target import Target

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
# Seconds from an installation without the network's time to the release of a lock.
INSTALL_SECONDS_MAX = 20.0
# Seconds after which a command that ought to end is ended: a build on a loaded machine takes the longest.
COMMAND_SECONDS_MAX = 3 * 3600


class Failed(Exception):
    """A check of a step did not hold."""


class Skipped(Exception):
    """A step could not run here. The message says what is missing."""


def run(*command: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Runs a command and returns its output. Raises Failed with the end of what it printed if it fails or takes too long."""
    words = [str(word) for word in command]
    # A group of its own, so that what the command has started ends with it: cargo and the compiler outlive the program that called them.
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=COMMAND_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(words)}: no end within {COMMAND_SECONDS_MAX} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode != 0:
        tail = "\n".join((output + errors).splitlines()[-30:])
        raise Failed(f"{' '.join(words)}: exit code {process.returncode}\n{tail}")
    return output


def need(*programs: str) -> None:
    """Raises Skipped if a program is not installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise Skipped(f"not installed: {', '.join(missing)}")


def check(holds: object, message: str) -> None:
    """Raises Failed with the message if something does not hold."""
    if not holds:
        raise Failed(message)


def fresh(folder: Path) -> Path:
    """Makes an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def copy(source: Path, target: Path, mode: int = 0o644) -> None:
    """Copies a file, with the folders that it needs."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


@dataclass
class Work:
    """One run of the script for one machine."""

    # Where the packages go, those for all machines.
    dist: ClassVar[Path] = ROOT / "target" / "dist"

    # A program to package. None: build it.
    given: Path | None
    # Tools and downloads that outlive a run.
    cache: Path
    strict: bool
    # The machine that the packages are for.
    target: Target
    # Packs with little effort: larger packages, sooner.
    quick: bool = False
    version: str = ""
    # The newest version of glibc that the program asks for.
    glibc: tuple[int, int] = (0, 0)
    # Seconds from an installation to the release of a lock, by step.
    installed: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
        self.version = manifest["package"]["version"]
        self.package = manifest["package"]
        # What is made on the way to the packages.
        self.scratch = self.dist / self.target.machine
        # The content of packages before they are packed.
        self.stage = self.scratch / "stage"
        # The clean places of installations.
        self.clean = self.scratch / "clean"
        self.build = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
        # Packages carry the time of the commit, so that a second build makes the same bytes.
        if "SOURCE_DATE_EPOCH" not in os.environ:
            os.environ["SOURCE_DATE_EPOCH"] = run("git", "log", "-1", "--format=%ct").strip() or "0"
        self.epoch = int(os.environ["SOURCE_DATE_EPOCH"])

    @property
    def maintainer(self) -> str:
        """Name and address of who answers for the packages: the first author of Cargo.toml."""
        return str(self.package["authors"][0])

    @property
    def program(self) -> Path:
        """The stripped program."""
        return self.stage / "portcullis"

    @property
    def name(self) -> str:
        """The stem of the files for this platform."""
        return f"portcullis-{self.version}-{self.target.triple}"

    def tools(self) -> Path:
        """The folder with the programs of tools.txt, which are installed once for each content of that file."""
        pinned = PACKAGING / "tools.txt"
        folder = self.cache / f"tools-{hashlib.sha256(pinned.read_bytes()).hexdigest()[:12]}"
        done = folder / "complete"
        if not done.exists():
            run(sys.executable, "-m", "venv", fresh(folder))
            run(folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "-r", pinned)
            done.touch()
        return folder / "bin"

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Times an installation with its lock, and fails if that takes too long."""
        begin = time.monotonic()
        yield
        took = self.installed[step] = time.monotonic() - begin
        check(took <= INSTALL_SECONDS_MAX, f"the installation and a lock took {took:.1f} s, more than {INSTALL_SECONDS_MAX:.0f} s")
