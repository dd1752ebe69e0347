#!/usr/bin/env python3
"""Builds all packages into target/dist, installs each in a clean place, and runs a lock through it.

    python3 packaging/dist.py                                  # builds the portable program, which takes minutes
    python3 packaging/dist.py --program PATH --only deb,tar    # packages a program that is there

It needs Linux on x86-64, Python 3.12 or 3.11.4 and later, cargo, binutils and dpkg, and fetches its tools from PyPI into the cache. The network's
time is not part of the figures. Nothing is published.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from steps import archive, container, crate, deb, npm, program, wheel
from steps.work import Failed, Skipped, Work

STEPS: dict[str, Callable[[Work], str]] = {
    "program": program.build,
    "tar": archive.build,
    "deb": deb.build,
    "wheel": wheel.build,
    "npm": npm.build,
    "crate": crate.build,
    "install": crate.install,
    "container": container.build,
    "sums": archive.sums,
}
# The other steps need the program, and the checksums are those of all files.
ALWAYS = {"program", "sums"}


def main() -> int:
    """Runs the steps. Returns the exit code: 0 if none failed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "portcullis-dist"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, metavar="PATH", help="packages this program instead of building one")
    parser.add_argument("--only", metavar="STEPS", help=f"comma-separated steps of {', '.join(STEPS)}")
    parser.add_argument(
        "--strict", action="store_true", help="a step that cannot run is a failure, and so is a program that is not portable"
    )
    parser.add_argument("--cache", type=Path, default=cache, metavar="DIR", help=f"folder of the tools [{cache}]")
    arguments = parser.parse_args()
    wanted = set(STEPS) if arguments.only is None else set(arguments.only.split(","))
    if unknown := wanted - set(STEPS):
        parser.error(f"unknown steps: {', '.join(sorted(unknown))}")
    given = arguments.program.resolve() if arguments.program else None
    if given is not None and not given.is_file():
        parser.error(f"{given} is not a program")
    arguments.cache.mkdir(parents=True, exist_ok=True)
    work = Work(given, arguments.cache.resolve(), arguments.strict)
    work.dist.mkdir(parents=True, exist_ok=True)
    # Packages of an earlier run are not this run's.
    for file in work.dist.iterdir():
        if file.is_file():
            file.unlink()

    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name, step in STEPS.items():
        if name not in wanted | ALWAYS:
            continue
        begin = time.monotonic()
        try:
            outcome, note = "passed", step(work)
        except Skipped as reason:
            outcome, note = "failed" if arguments.strict else "skipped", str(reason)
        except Failed as reason:
            outcome, note = "failed", str(reason)
        except Exception:
            outcome, note = "failed", traceback.format_exc()
        counts[outcome] += 1
        took = time.monotonic() - begin
        installed = f" (installation and a lock: {work.installed[name]:.1f} s)" if name in work.installed else ""
        print(f"{outcome:7} {name:9} {took:6.1f} s{installed}  {note}", flush=True)
        if name == "program" and outcome == "failed":
            break
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    print(f"{counts['passed']} passed, {counts['failed']} failed{skipped}")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
