"""The portable program: built against an old glibc by zig's linker, stripped, with its symbols beside it, and what it generates."""

from __future__ import annotations

import os
import re
from pathlib import Path

from steps.lock import lock, script, served
from steps.work import TRIPLE, Failed, Work, check, copy, fresh, need, run

# The glibc of RHEL 7 and of manylinux2014: every distribution with support has it or a newer one.
GLIBC_MAX = (2, 17)
# Libraries that belong to glibc.
SYSTEM_LIBRARIES = r"lib(c|m|dl|rt|pthread)\.so\.\d|ld-linux-x86-64\.so\.2"


def build(work: Work) -> str:
    """Builds or takes the program and fills the stage with it, its completions and its man pages."""
    need("objcopy", "objdump")
    fresh(work.stage)
    source = work.given or _compile(work)
    symbols = fresh(work.dist / "symbols")
    run("objcopy", "--only-keep-debug", source, symbols / "portcullis.debug")
    # Debug information of inlined functions. A given program may lie alone.
    packed = source.with_name(source.name + ".dwp")
    if packed.exists():
        copy(packed, symbols / "portcullis.dwp")
    # objcopy records a checksum of the symbols, which it looks for beside the program.
    run("objcopy", "--strip-all", f"--add-gnu-debuglink={symbols / 'portcullis.debug'}", source, work.program)
    work.program.chmod(0o755)
    version = run(work.program, "--version").split()[1]
    check(version == work.version, f"the program is version {version}, and Cargo.toml says {work.version}")
    note = _portability(work)
    for shell, name in (("bash", "portcullis"), ("zsh", "_portcullis"), ("fish", "portcullis.fish")):
        file = work.stage / "completions" / shell / name
        file.parent.mkdir(parents=True)
        file.write_text(run(work.program, "completions", shell))
    run(work.program, "man", work.stage / "man")
    check((work.stage / "man/portcullis-serve.1").exists(), "there is no man page of portcullis serve")
    with served(work.program) as address:
        lock(address)
        script(address)
    return f"{work.program.stat().st_size / 1e6:.1f} MB, {note}"


def _compile(work: Work) -> Path:
    tools = work.tools()
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    target = f"{TRIPLE}.{GLIBC_MAX[0]}.{GLIBC_MAX[1]}"
    command = (tools / "cargo-zigbuild", "zigbuild", "--release", "--locked", "--bin", "portcullis", "--target", target)
    run(*command, env={"PATH": path, "CARGO_TARGET_DIR": str(work.target)})
    return work.target / TRIPLE / "release/portcullis"


def _portability(work: Work) -> str:
    """Finds the glibc that the program needs. A program that this script built must need no newer one than it was built for."""
    wanted = re.findall(r"GLIBC_(\d+)\.(\d+)", run("objdump", "-T", work.program))
    work.glibc = max((int(major), int(minor)) for major, minor in wanted)
    libraries = re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", work.program))
    foreign = [library for library in libraries if not re.fullmatch(SYSTEM_LIBRARIES, library)]
    needs = f"needs glibc {work.glibc[0]}.{work.glibc[1]}" + (f" and {', '.join(foreign)}" if foreign else "")
    portable = work.glibc <= GLIBC_MAX and not foreign
    if not portable and (work.strict or work.given is None):
        raise Failed(f"the program {needs}, and is to run with glibc {GLIBC_MAX[0]}.{GLIBC_MAX[1]} alone")
    return needs + ("" if portable else ": not portable")
