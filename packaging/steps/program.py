"""The portable program: built against an old glibc by zig's linker, stripped, with its symbols beside it, and what it generates."""

from __future__ import annotations

import os
import re
from pathlib import Path

from steps.lock import lock, script, served
from steps.paths import registries
from steps.work import ROOT, Failed, Skipped, Work, check, copy, fresh, need, run

# The glibc of RHEL 7 and of manylinux2014: every distribution with support has it or a newer one.
GLIBC_MAX = (2, 17)
# Libraries that belong to glibc.
SYSTEM_LIBRARIES = r"lib(c|m|dl|rt|pthread)\.so\.\d"


def build(work: Work) -> str:
    """Builds or takes the program and fills the stage with it, its completions and its man pages."""
    need(*work.target.need())
    objcopy, runner = work.target.binutil("objcopy"), work.target.runner
    fresh(work.stage)
    source = work.given or _compile(work)
    symbols = fresh(work.scratch / "symbols")
    run(objcopy, "--only-keep-debug", source, symbols / "portcullis.debug")
    if work.given is None:
        _anonymous(symbols / "portcullis.debug", [work.cache, work.build, ROOT])
    # Debug information of inlined functions. A given program may lie alone.
    packed = source.with_name(source.name + ".dwp")
    if packed.exists():
        copy(packed, symbols / "portcullis.dwp")
    # objcopy records a checksum of the symbols, which it looks for beside the program.
    run(objcopy, "--strip-all", f"--add-gnu-debuglink={symbols / 'portcullis.debug'}", source, work.program)
    work.program.chmod(0o755)
    version = run(*runner, work.program, "--version").split()[1]
    check(version == work.version, f"the program is version {version}, and Cargo.toml says {work.version}")
    note = _portability(work)
    for shell, name in (("bash", "portcullis"), ("zsh", "_portcullis"), ("fish", "portcullis.fish")):
        file = work.stage / "completions" / shell / name
        file.parent.mkdir(parents=True)
        file.write_text(run(*runner, work.program, "completions", shell))
    run(*runner, work.program, "man", work.stage / "man")
    check((work.stage / "man/portcullis-serve.1").exists(), "there is no man page of portcullis serve")
    with served(work.program, wrap=runner) as address:
        lock(address)
        script(address)
    return f"{work.program.stat().st_size / 1e6:.1f} MB, {note}"


def _compile(work: Work) -> Path:
    tools = work.tools()
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    triple = work.target.triple
    if triple not in run("rustc", "--print", "target-list").split():
        raise Failed(f"rustc does not know {triple}")
    if not Path(run("rustc", "--print", "target-libdir", "--target", triple).strip()).exists():
        raise Skipped(f"Rust's standard library for {triple} is missing: rustup target add {triple}")
    target = f"{triple}.{GLIBC_MAX[0]}.{GLIBC_MAX[1]}"
    command = (tools / "cargo-zigbuild", "zigbuild", "--release", "--locked", "--bin", "portcullis", "--target", target)
    run(*command, env={"PATH": path, "CARGO_TARGET_DIR": str(work.build), **_remapping(triple, work.build)})
    return work.build / triple / "release/portcullis"


def _remapping(triple: str, build: Path) -> dict[str, str]:
    """The environment of a build whose panics and symbols name no folder of this machine, and are the same in every folder."""
    # Of several prefixes that fit, rustc takes the last.
    places = [(build, "/usr/src/portcullis/target"), (ROOT, "/usr/src/portcullis")]
    places += [(folder, "/cargo/registry") for folder in registries()]
    flags = [f"--remap-path-prefix={place}={name}" for place, name in places]
    kept = os.environ.get("CARGO_ENCODED_RUSTFLAGS", "\x1f".join(os.environ.get("RUSTFLAGS", "").split()))
    # C code: Lua and ring.
    variable = f"CFLAGS_{triple.replace('-', '_')}"
    c_flags = " ".join([os.environ.get(variable, ""), *(f"-ffile-prefix-map={place}={name}" for place, name in places)])
    return {
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join([*filter(None, [kept]), *flags]),
        variable: c_flags.strip(),
        # Where zig keeps its runtime libraries. They name the folder that they were compiled in, which must be one of this build.
        "ZIG_GLOBAL_CACHE_DIR": str(build / "zig"),
    }


def _anonymous(symbols: Path, places: list[Path]) -> None:
    """Replaces folders of this machine, which no flag keeps out of zig's runtime libraries, by a path of the same length."""
    content = symbols.read_bytes()
    for place in places:
        old = str(place).encode()
        content = re.sub(re.escape(old) + rb"(?=[/\0])", b"/zig".ljust(len(old), b"/")[: len(old)], content)
    symbols.write_bytes(content)


def _portability(work: Work) -> str:
    """Finds the glibc that the program needs. A program that this script built must need no newer one than it was built for."""
    wanted = re.findall(r"GLIBC_(\d+)\.(\d+)", run(work.target.binutil("objdump"), "-T", work.program))
    work.glibc = max((int(major), int(minor)) for major, minor in wanted)
    libraries = re.findall(r"NEEDED\s+(\S+)", run(work.target.binutil("objdump"), "-p", work.program))
    foreign = [library for library in libraries if library != work.target.loader and not re.fullmatch(SYSTEM_LIBRARIES, library)]
    needs = f"needs glibc {work.glibc[0]}.{work.glibc[1]}" + (f" and {', '.join(foreign)}" if foreign else "")
    portable = work.glibc <= GLIBC_MAX and not foreign
    if not portable and (work.strict or work.given is None):
        raise Failed(f"the program {needs}, and is to run with glibc {GLIBC_MAX[0]}.{GLIBC_MAX[1]} alone")
    return needs + ("" if portable else ": not portable")
