#!/usr/bin/env python3
"""Tests the Python package: its suite against a server alone and a durable one, three nodes whose leader is killed, the guide, its types.

    python3 python/tests/run.py --cache DIR --program target/debug/portcullis

Libraries come from their registry at the versions pinned beside this file, into the cache. The suite runs in two environments, with the newest
redis-py and with the oldest that the package supports. The package is linked into them, with its entry point, and not built: the wheel has a test of its own.
What cannot run here is skipped; with --strict that is a failure. The last line is `N passed, N failed`.
"""

import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parent
EMBED = PACKAGE.parent / "tests/embed/python"
OLDEST_REDIS_PY = "5.0.2"
# Tests of what depends on redis-py, for the oldest one.
OF_REDIS_PY = [
    "test_locks.py", "test_aio.py", "test_keeping.py", "test_faults.py", "test_compat.py", "test_compat_aio.py", "test_target.py", "test_wire.py",
    "test_link_aio.py", "test_fork.py", "test_forgotten.py", "test_lost_links.py", "test_patience.py", "test_keeper_survives.py", "test_silence.py",
]  # fmt: skip


def environment(cache, name, requirements):
    """A virtual environment with these requirements, made once for each content, and the package linked into it."""
    text = "\n".join(requirements)
    key = hashlib.sha256(f"{sys.version} {text}".encode()).hexdigest()[:16]
    home = cache / f"{name}-{key}"
    interpreter = home / "bin/python"
    if not (home / ".complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        command = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
        subprocess.run(command, check=True)
        (home / ".complete").touch()
    packages = subprocess.run([interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True)
    link(pathlib.Path(packages.stdout.strip()))
    return interpreter


def link(packages):
    """Makes the package importable, and its pytest plugin known."""
    project = (PACKAGE / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.*)"$', project, re.MULTILINE).group(1)
    plugin = re.search(r'^portcullis = "(.*)"$', project, re.MULTILINE).group(1)
    (packages / "portcullis_lock.pth").write_text(f"{PACKAGE / 'src'}\n")
    about = packages / f"portcullis_lock-{version}.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: portcullis-lock\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(f"[pytest11]\nportcullis = {plugin}\n")


def part(name, command, program):
    """Runs one part. Returns how many tests passed, failed and were skipped."""
    begun = time.monotonic()
    # Tests kill processes, which leave files behind.
    with tempfile.TemporaryDirectory(prefix="portcullis-python-") as folder:
        variables = {**os.environ, "PORTCULLIS": str(program), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": folder}
        done = subprocess.run(list(map(str, command)), cwd=PACKAGE, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", last)}
    passed, failed = counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0)
    if "pytest" not in command:
        passed, failed = (1, 0) if done.returncode == 0 else (0, 1)
    elif done.returncode != 0 and not failed or not passed:
        failed += 1
    print(f"{name:<52}{passed:>6} passed{failed:>6} failed{counts.get('skipped', 0):>6} skipped{time.monotonic() - begun:>8.1f} s", flush=True)
    if failed:
        print(done.stdout, flush=True)
    return passed, failed, counts.get("skipped", 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/portcullis-python")
    parser.add_argument("--program", type=pathlib.Path, required=True, help="the server's program")
    parser.add_argument("--strict", action="store_true", help="what cannot run here is a failure")
    arguments = parser.parse_args()
    cache, program = arguments.cache.resolve(), arguments.program.resolve()
    cache.mkdir(parents=True, exist_ok=True)

    pinned = (HERE / "requirements.txt").read_text().split()
    newest = environment(cache, "newest", pinned)
    oldest = environment(cache, "oldest", [f"redis=={OLDEST_REDIS_PY}", *(line for line in pinned if line.startswith(("pytest", "freezegun", "time-machine")))])

    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers"]
    parallel = ["-n", "2", "--dist", "worksteal"]
    durable = ["-o", "portcullis_args=--appendonly yes"]
    results = [
        part("types: mypy --strict", [newest, "-m", "mypy", "--strict", "--cache-dir", cache / "mypy", "src/portcullis_lock"], program),
        part("types: pyright", [newest, "-m", "pyright", "--pythonpath", newest, "src"], program),
        part("the suite, with three nodes whose leader is killed", [newest, *pytest, *parallel, "tests"], program),
        part("a durable server", [newest, *pytest, *parallel, *durable, *(f"tests/{name}" for name in ("test_workers.py", "test_keeping.py"))], program),
        part("the guide, and the application of tests/embed", [newest, *pytest, EMBED], program),
        part(f"redis-py {OLDEST_REDIS_PY}", [oldest, *pytest, *parallel, *(f"tests/{name}" for name in OF_REDIS_PY)], program),
    ]  # fmt: skip
    passed, failed, skipped = (sum(column) for column in zip(*results))
    if skipped and arguments.strict:
        failed += skipped
        print("with --strict nothing may be skipped")
    print(f"{passed} passed, {failed} failed")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
