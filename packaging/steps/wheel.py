"""The wheel: the Python package with the program beside it.

`maturin build` in python/ makes the same, but compiles the program. This step takes the metadata from maturin and adds the finished program.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from steps.lock import lock, served
from steps.work import ROOT, Skipped, Work, check, copy, fresh, run

QUIET = ("--quiet", "--disable-pip-version-check")

CLIENT = """
import sys, portcullis_lock
locks = portcullis_lock.connect(sys.argv[1])
with locks.lock("order:42", lease=30, wait=5) as grant:
    print(grant.token)
"""


def build(work: Work) -> str:
    """Builds the wheel, installs it with pip in a new environment, and runs a lock by the client."""
    source = ROOT / "python"
    if not (source / "pyproject.toml").exists():
        raise Skipped("there is no python/pyproject.toml")
    tools = work.tools()
    tree = fresh(work.scratch / "wheel")
    # The folder of the metadata is the last line of the output.
    folder = run(tools / "maturin", "pep517", "write-dist-info", "--metadata-directory", tree, cwd=source).split()[-1]
    info = tree / folder
    tag = f"manylinux_{work.glibc[0]}_{work.glibc[1]}_{work.target.machine}"
    _tag(info / "WHEEL", f"py3-none-{tag}")
    (info / "RECORD").unlink(missing_ok=True)
    shutil.copytree(source / "src", tree, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    scripts = tree / folder.replace(".dist-info", ".data") / "scripts"
    copy(work.program, scripts / "portcullis", 0o755)
    out = fresh(work.scratch / "wheel-out")
    run(tools / "python", "-m", "wheel", "pack", tree, "--dest-dir", out)
    (wheel,) = out.glob("*.whl")
    wheel = wheel.rename(work.dist / wheel.name)

    # The network's time does not count: what the wheel needs is fetched before.
    needed = work.cache / "wheels"
    run(tools / "pip", "download", *QUIET, *_foreign(work, tag), "--find-links", needed, "--dest", needed, wheel)
    # pip has copied the wheel itself, too, and would take an old copy for the new one.
    for copied in needed.glob("portcullis_lock-*.whl"):
        copied.unlink()
    clean = fresh(work.clean / "wheel")
    run(sys.executable, "-m", "venv", clean)
    with work.timed("wheel"):
        # A wheel for another machine cannot be in this one's environment. Its Python code runs from a folder, with this machine's Python.
        apart = None if work.target.is_native else clean / "foreign"
        place: tuple[object, ...] = ("--target", apart) if apart else ()
        run(clean / "bin/pip", "install", *QUIET, *_foreign(work, tag), *place, "--no-index", "--find-links", needed, wheel)
        with served((apart or clean) / "bin/portcullis", wrap=work.target.runner) as address:
            lock(address)
            host, port = address
            env = {"PYTHONPATH": str(apart)} if apart else {}
            token = run(clean / "bin/python", "-c", CLIENT, f"redis://{host}:{port}", env=env).strip()
            check(token.isdigit() and int(token) > 0, f"the client printed {token!r}, not a token")
    check(f"-{work.version}-" in wheel.name, f"{wheel.name} is not of version {work.version}: python/pyproject.toml has another")
    return f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB"


def _foreign(work: Work, tag: str) -> tuple[str, ...]:
    """What has pip take packages for the wheel's machine if that is not this one."""
    return () if work.target.is_native else ("--platform", tag, "--only-binary", ":all:")


def _tag(file: Path, tag: str) -> None:
    """Says for which platforms the wheel is: the program needs no Python of a certain version, and this glibc."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("Tag:")]
    file.write_text("\n".join([*lines, f"Tag: {tag}"]) + "\n")
