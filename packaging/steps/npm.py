"""The packages for npm: the client, and the program of this platform, which the client names as an optional dependency."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from steps.lock import lock, served
from steps.work import ROOT, Skipped, Work, check, fresh, need, run

QUIET = ("--no-audit", "--no-fund", "--loglevel=error")
# The client library that the lock goes through.
DRIVER = "ioredis@6"

CLIENT = """
import { connect } from 'portcullis-lock'
const locks = connect(process.argv[2])
await locks.withLock('order:42', { wait: 5000 }, async (grant) => console.log(grant.token))
await locks.close()
"""


def build(work: Work) -> str:
    """Builds both packages, installs them in a new folder, and runs a lock by the client."""
    source = ROOT / "node"
    if not (source / "package.json").exists():
        raise Skipped("there is no node/package.json")
    need("node", "npm")
    built = _compiler(work, source)
    for name in ("src", "scripts", "bin", "types"):
        shutil.rmtree(built / name, ignore_errors=True)
        shutil.copytree(source / name, built / name)
    for file in source.glob("*.*"):
        if file.suffix in (".json", ".md"):
            shutil.copyfile(file, built / file.name)
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        shutil.copyfile(ROOT / name, built / name)
    # Packing builds the package first: `prepack`.
    client = _pack(work, built)
    platform = fresh(work.scratch / "npm/platform")
    run("node", built / "scripts/platform-package.mjs", work.program, platform, f"linux-{work.target.npm}")
    program = _pack(work, platform)
    program_name = f"portcullis-lock-linux-{work.target.npm}"

    # The network's time does not count: the first installation fills npm's cache, the second is offline and timed.
    npm_cache = work.cache / "npm"
    for name, options in (("warm", ()), ("npm", ("--offline",))):
        clean = fresh(work.clean / name)
        manifest: dict[str, object] = {"type": "module", "private": True}
        asked: list[object] = [client, DRIVER]
        if work.target.is_native:
            asked.append(program)
        else:
            # npm takes a package for another machine only where it is optional, as it is for those who install the client.
            manifest["optionalDependencies"] = {program_name: f"file:{program}"}
            asked += ["--os=linux", f"--cpu={work.target.npm}"]
        (clean / "package.json").write_text(json.dumps(manifest))
        (clean / "lock.mjs").write_text(CLIENT)
        install = ("npm", "install", *QUIET, *options, "--cache", npm_cache, *asked)
        if name == "warm":
            run(*install, cwd=clean)
            continue
        with work.timed("npm"):
            run(*install, cwd=clean)
            # The command finds the program of this machine. Another one's is run itself.
            command = ".bin/portcullis" if work.target.is_native else f"{program_name}/bin/portcullis"
            with served(clean / "node_modules" / command, wrap=work.target.runner) as address:
                lock(address)
                host, port = address
                token = run("node", "lock.mjs", f"redis://{host}:{port}", cwd=clean).strip().rstrip("n")
                check(token.isdigit() and int(token) > 0, f"the client printed {token!r}, not a token")
    shutil.rmtree(work.clean / "warm")
    check(work.version in client.name, f"{client.name} is not of version {work.version}: node/package.json has another")
    return f"{client.name} and {program.name}, {program.stat().st_size / 1e6:.1f} MB"


def _compiler(work: Work, source: Path) -> Path:
    """A folder with what the build needs, installed once for each content of the manifest."""
    manifest = (source / "package.json").read_bytes()
    folder = work.cache / f"node-{hashlib.sha256(manifest).hexdigest()[:12]}"
    done = folder / "complete"
    if not done.exists():
        shutil.copyfile(source / "package.json", fresh(folder) / "package.json")
        # Not the packages of platforms, which may not be published: one of them is built here.
        run("npm", "install", *QUIET, "--ignore-scripts", "--omit=optional", cwd=folder)
        done.touch()
    return folder


def _pack(work: Work, folder: Path) -> Path:
    packed = json.loads(run("npm", "pack", "--json", "--loglevel=error", "--pack-destination", work.dist, cwd=folder))
    return work.dist / str(packed[0]["filename"])
