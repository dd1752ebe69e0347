"""The archive for any distribution, the one with the symbols, and the checksums of everything."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
from pathlib import Path

from steps.licences import third_party
from steps.lock import lock, served
from steps.work import PACKAGING, ROOT, Skipped, Work, check, copy, fresh, run


def pack(work: Work, folder: Path, target: Path) -> None:
    """Packs a folder. The same content makes the same bytes: files are sorted, and belong to root at the time of the commit."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = work.epoch
        return entry

    with (
        open(target, "wb") as file,
        gzip.GzipFile("", "wb", 1 if work.quick else 9, file, work.epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        archive.add(folder, folder.name, filter=plain)


def documents(work: Work) -> None:
    """Puts the pages and licences into the stage, once for all steps."""
    for name in ("README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"):
        copy(ROOT / name, work.stage / name)
    if not (work.stage / "THIRD-PARTY.txt").exists():
        (work.stage / "THIRD-PARTY.txt").write_text(third_party(work.target))


def build(work: Work) -> str:
    """Makes both archives, unpacks the first in a clean folder and runs a lock."""
    documents(work)
    folder = fresh(work.scratch / "tar" / work.name)
    for file in sorted(work.stage.rglob("*")):
        if file.is_file():
            copy(file, folder / file.relative_to(work.stage), file.stat().st_mode & 0o777)
    for name in ("portcullis.service", "portcullis.conf"):
        copy(PACKAGING / name, folder / name)
    archive = work.dist / f"{work.name}.tar.gz"
    pack(work, folder, archive)
    if not work.quick:
        symbols = fresh(work.scratch / "tar" / f"{work.name}-symbols")
        for file in (work.scratch / "symbols").iterdir():
            copy(file, symbols / file.name)
        pack(work, symbols, work.dist / f"{work.name}-symbols.tar.gz")

    clean = fresh(work.clean / "tar")
    with work.timed("tar"):
        run("tar", "-xzf", archive, "-C", clean)
        with served(clean / work.name / "portcullis", wrap=work.target.runner) as address:
            lock(address)
    for name in ("LICENSE-MIT", "README.md", "man/portcullis.1", "completions/zsh/_portcullis", "portcullis.service"):
        check((clean / work.name / name).is_file(), f"the archive lacks {name}")
    return f"{archive.name}, {archive.stat().st_size / 1e6:.1f} MB"


def sums(work: Work) -> str:
    """Writes SHA256SUMS over the packages, and checks it as a user does."""
    files = sorted(file for file in work.dist.iterdir() if file.is_file() and file.name != "SHA256SUMS")
    if not files:
        raise Skipped("there are no packages")
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (work.dist / "SHA256SUMS").write_text("".join(lines))
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=work.dist, env={"LC_ALL": "C"})
    return f"{len(files)} files of {os.path.relpath(work.dist, ROOT)}"
