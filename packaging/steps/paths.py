"""No package names a folder of the machine that made it."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from steps.work import ROOT, Work, check

# The program and its symbols: a given program was compiled elsewhere, and names what its build left in it.
COMPILED = {"portcullis", "portcullis.debug", "portcullis.dwp"}


def registries() -> list[Path]:
    """The folders with the sources of crates."""
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    return sorted(folder for folder in (home / "registry/src").glob("*") if folder.is_dir())


def search(work: Work) -> str:
    """Looks through every file of every package for the folders of this machine."""
    home = Path.home()
    places = [ROOT, work.cache, work.build, *registries(), *([home] if len(home.parts) > 1 else [])]
    # With what follows: a folder whose name only begins like one of them is another.
    marks = [re.compile(re.escape(str(place).encode()) + rb"(?=[/\0])") for place in places]
    count, found = 0, []
    for package in sorted(file for file in work.dist.iterdir() if file.is_file()):
        for name, content in _files(package):
            count += 1
            if work.given is not None and Path(name).name in COMPILED:
                continue
            for mark in marks:
                if match := mark.search(content):
                    text = content[match.start() : match.start() + 120].split(b"\0")[0].splitlines()[0]
                    found.append(f"{package.name}: {name}: {text.decode(errors='replace')}")
    check(not found, "packages name folders of this machine:\n" + "\n".join(found[:20]))
    return f"{count} files" + ("" if work.given is None else " besides the given program")


def _files(package: Path) -> Iterator[tuple[str, bytes]]:
    """The files in a package, with their names."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            for name in archive.namelist():
                yield name, archive.read(name)
    elif package.suffix == ".deb":
        for part in ("--fsys-tarfile", "--ctrl-tarfile"):
            yield from _tar(subprocess.run(["dpkg-deb", part, package], stdout=subprocess.PIPE, check=True).stdout)
    elif package.suffix in (".gz", ".tgz", ".crate"):
        yield from _tar(package.read_bytes())
    else:
        yield package.name, package.read_bytes()


def _tar(content: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for entry in archive:
            file = archive.extractfile(entry) if entry.isfile() else None
            if file is not None:
                yield entry.name, file.read()
