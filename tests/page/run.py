#!/usr/bin/env python3
"""Opens the page of a server, and those that bench and torture write, in a browser without a screen, and checks what they show and do.

    python3 tests/page/run.py                         the program that cargo builds, or $PORTCULLIS
    python3 tests/page/run.py target/release/portcullis --shots /tmp/shots

Selenium comes from its registry, at the version pinned beside this file, into a cache (--cache, by default
~/.cache/portcullis-page). The browser is an installed Chromium or Chrome with its driver. What cannot run here is listed as skipped;
with --strict that is a failure too. With --shots pictures of the pages are written into a folder: light, dark, on a phone.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
DRIVERS = ["chromedriver", "chromium.chromedriver"]
SECONDS_MAX = 900


class Unavailable(Exception):
    """The checks cannot run here, and why."""


def quiet(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise Unavailable(f"`{' '.join(map(str, command))}` failed:\n{done.stdout[-3000:]}")


def need(what, names):
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise Unavailable(f"no {what} is installed ({', '.join(names)})")
    return found


def interpreter(cache):
    """Python with selenium, made once for each content of the file that pins its version."""
    requirements = HERE / "requirements.txt"
    pinned = hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]
    target = cache / f"python-{pinned}"
    done = target / ".complete"
    if not done.exists():
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        quiet(sys.executable, "-m", "venv", target / "venv")
        quiet(target / "venv/bin/pip", "install", "-q", "--disable-pip-version-check", "-r", requirements)
        done.touch()
    return target / "venv/bin/python"


def program(given):
    if given is None and "PORTCULLIS" in os.environ:
        given = pathlib.Path(os.environ["PORTCULLIS"])
    if given is None:
        quiet("cargo", "build", "--locked", "--quiet", "--manifest-path", ROOT / "Cargo.toml")
        given = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "portcullis"
    if not given.exists():
        raise SystemExit(f"there is no program {given}")
    return given.resolve()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", type=pathlib.Path, help="the server to run")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/portcullis-page")
    parser.add_argument("--shots", type=pathlib.Path, help="a folder for pictures of the page")
    parser.add_argument("--only", action="append", default=[], help="a check; may be given several times")
    parser.add_argument("--strict", action="store_true", help="what cannot run here is a failure")
    arguments = parser.parse_args()
    try:
        browser, driver = need("browser", BROWSERS), need("driver of a browser", DRIVERS)
        command = [interpreter(arguments.cache), "-u", "-B", HERE / "checks.py", program(arguments.program), browser, driver]
    except Unavailable as why:
        print(f"SKIPPED: the page in a browser: {why}")
        raise SystemExit(1 if arguments.strict else 0)
    if arguments.shots:
        arguments.shots.mkdir(parents=True, exist_ok=True)
        command += ["--shots", arguments.shots.resolve()]
    for name in arguments.only:
        command += ["--only", name]
    try:
        # Browsers leave files behind.
        with tempfile.TemporaryDirectory(prefix="portcullis-page-") as folder:
            raise SystemExit(subprocess.run(command, timeout=SECONDS_MAX, env={**os.environ, "TMPDIR": folder}).returncode)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"FAILED: the checks took longer than {SECONDS_MAX} s")


if __name__ == "__main__":
    main()
