#!/usr/bin/env python3
"""Builds all packages into target/dist, installs each in a clean place, and runs a lock through it.

    python3 packaging/dist.py                                  # builds the portable program, which takes minutes
    python3 packaging/dist.py --target x86_64,aarch64          # for both machines; the other one's program runs under qemu
    python3 packaging/dist.py --program PATH --only deb,tar    # packages a program that is there
    python3 packaging/dist.py --program PATH --quick --only tar,deb,wheel,npm,context,crate    # what needs no compiler and no engine

It needs Linux, Python 3.12 or 3.11.4 and later, cargo, binutils and dpkg, and fetches its tools from PyPI into the cache. The network's time is
not part of the figures. Nothing is published. For another machine it needs Rust's standard library, qemu-user, and Debian's packages
binutils-aarch64-linux-gnu and libc6-arm64-cross. The steps container and service need podman, or docker for the first.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from steps import archive, container, crate, deb, npm, paths, program, service, wheel
from steps.target import TARGETS
from steps.work import Failed, Skipped, Work

Step = Callable[[Work], str]
# For each machine.
STEPS: dict[str, Step] = {
    "program": program.build,
    "tar": archive.build,
    "deb": deb.build,
    "wheel": wheel.build,
    "npm": npm.build,
    "context": container.context,
}
# For this machine alone: a crate is for all, and containers run nothing else.
NATIVE: dict[str, Step] = {
    "crate": crate.build,
    "install": crate.install,
    "container": container.container,
    "service": service.service,
}
# Over the packages for all machines.
LAST: dict[str, Step] = {"paths": paths.search, "sums": archive.sums}
ALL = {**STEPS, **NATIVE, **LAST}
# The other steps need the program, and the last two look at all packages.
ALWAYS = {"program", *LAST}


class Tally:
    """Runs steps and counts what became of them."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}

    def run(self, name: str, step: Step, work: Work, label: str) -> bool:
        """Runs a step and prints a line about it. Returns whether it passed."""
        begin = time.monotonic()
        try:
            outcome, note = "passed", step(work)
        except Skipped as reason:
            outcome, note = "failed" if self.strict else "skipped", str(reason)
        except Failed as reason:
            outcome, note = "failed", str(reason)
        except Exception:
            outcome, note = "failed", traceback.format_exc()
        self.counts[outcome] += 1
        took = time.monotonic() - begin
        installed = f" (installation and a lock: {work.installed[name]:.1f} s)" if name in work.installed else ""
        print(f"{outcome:7} {label:9} {took:6.1f} s{installed}  {note}", flush=True)
        return outcome == "passed"


def main() -> int:
    """Runs the steps. Returns the exit code: 0 if none failed."""
    arguments = parse()
    dist = Work.dist
    dist.mkdir(parents=True, exist_ok=True)
    # Packages of an earlier run are not this run's.
    for file in dist.iterdir():
        if file.is_file():
            file.unlink()

    tally = Tally(arguments.strict)
    for machine in arguments.target:
        target = TARGETS[machine]
        work = Work(arguments.program, arguments.cache, arguments.strict, target, arguments.quick)
        for name, step in {**STEPS, **(NATIVE if target.is_native else {})}.items():
            if name not in arguments.only | ALWAYS:
                continue
            label = name if target.is_native else f"{name} for {machine}"
            if not tally.run(name, step, work, label) and name == "program":
                break
    for name, step in LAST.items():
        tally.run(name, step, work, name)
    skipped = f", {tally.counts['skipped']} skipped" if tally.counts["skipped"] else ""
    print(f"{tally.counts['passed']} passed, {tally.counts['failed']} failed{skipped}")
    return 1 if tally.counts["failed"] else 0


def parse() -> argparse.Namespace:
    """The command line, checked."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "portcullis-dist"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, metavar="PATH", help="packages this program instead of building one")
    parser.add_argument("--target", default=platform.machine(), metavar="MACHINES", help=f"comma-separated machines of {', '.join(TARGETS)}")
    parser.add_argument("--only", default=",".join(ALL), metavar="STEPS", help=f"comma-separated steps of {', '.join(ALL)}")
    parser.add_argument(
        "--strict", action="store_true", help="a step that cannot run is a failure, and so is a program that is not portable"
    )
    parser.add_argument("--quick", action="store_true", help="for tests: larger packages, made sooner, and no archive of the symbols")
    parser.add_argument("--cache", type=Path, default=cache, metavar="DIR", help=f"folder of the tools [{cache}]")
    arguments = parser.parse_args()
    for name, known in (("target", TARGETS), ("only", ALL)):
        values = dict.fromkeys(getattr(arguments, name).split(","))
        if unknown := values.keys() - known.keys():
            parser.error(f"--{name}: unknown: {', '.join(sorted(unknown))}")
        setattr(arguments, name, values.keys())
    if arguments.program is not None:
        arguments.program = arguments.program.resolve()
        if not arguments.program.is_file():
            parser.error(f"{arguments.program} is not a program")
        if len(arguments.target) > 1:
            parser.error("--program is for one machine")
    arguments.cache.mkdir(parents=True, exist_ok=True)
    arguments.cache = arguments.cache.resolve()
    return arguments


if __name__ == "__main__":
    sys.exit(main())
