"""The crate: what `cargo publish` would upload, and `cargo install` from it."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from typing import Any

from steps.licences import linked_crates
from steps.lock import lock, served
from steps.work import ROOT, Skipped, Work, check, copy, fresh, run

# What a user of the crate needs: the sources, and the pages that its documentation quotes and links.
TOP = {"src", "guide", "README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "Cargo.toml", "Cargo.lock"}
# cargo adds these itself.
ADDED = {".cargo_vcs_info.json", "Cargo.toml.orig"}
# What the index and the page of the crate show.
FIELDS = ("description", "license", "repository", "readme", "keywords", "categories", "rust-version")
CRATE_BYTES_MAX = 10 << 20


def build(work: Work) -> str:
    """Packs the crate and checks its content, its metadata and that the registry's rules hold, without an upload."""
    missing = [field for field in FIELDS if not work.package.get(field)]
    check(not missing, f"Cargo.toml lacks {', '.join(missing)}")
    newer = [f"{each['name']} {each['rust_version']}" for each in linked_crates(work.target) if _version(each) > _version(work.package)]
    check(not newer, f"these need a newer Rust than rust-version says: {', '.join(newer)}")
    listed = run("cargo", "package", "--list", "--locked", "--allow-dirty").splitlines()
    top = {file.split("/")[0] for file in listed}
    check(top == TOP | ADDED, f"the crate has {top - TOP - ADDED or 'nothing'} too much and lacks {TOP - top or 'nothing'}")
    check("src/main.rs" in listed, "the crate lacks the program")
    # Where cargo puts the crate depends on its version. A crate of an earlier run is not this one.
    name = f"portcullis-{work.version}.crate"
    places = [work.build / "package" / name, work.build / "package/tmp-crate" / name]
    for place in places:
        place.unlink(missing_ok=True)
    # Nothing is compiled here: `install` does that from the packed files.
    run("cargo", "publish", "--dry-run", "--no-verify", "--locked", "--allow-dirty", env={"CARGO_TARGET_DIR": str(work.build)})
    made = [place for place in places if place.exists()]
    check(made, f"cargo has packed no {name}")
    crate = made[0]
    check(crate.stat().st_size <= CRATE_BYTES_MAX, f"the crate has {crate.stat().st_size} bytes, and the registry takes {CRATE_BYTES_MAX}")
    copy(crate, work.dist / crate.name)
    return f"{crate.name}, {len(listed)} files, {crate.stat().st_size / 1e6:.1f} MB"


def _version(package: Mapping[str, Any]) -> tuple[int, ...]:
    """The oldest Rust that a package says it needs, from a manifest or from `cargo metadata`."""
    said = package.get("rust-version") or package.get("rust_version") or "0"
    return tuple(int(part) for part in said.split(".")[:2])


def install(work: Work) -> str:
    """Installs from the packed crate, as `cargo install portcullis` does. It compiles everything, and has no bound on its time."""
    if work.given is not None:
        raise Skipped("it compiles the program, and one was given")
    crate = work.dist / f"portcullis-{work.version}.crate"
    check(crate.exists(), f"{crate.relative_to(ROOT)} is missing: run the step crate first")
    clean = fresh(work.clean / "cargo")
    with tarfile.open(crate) as archive:
        archive.extractall(clean, filter="data")
    unpacked = clean / f"portcullis-{work.version}"
    # Outside of the repository's workspace, as in the registry's cache.
    with open(unpacked / "Cargo.toml", "a") as manifest:
        manifest.write("\n[workspace]\n")
    env = {"CARGO_TARGET_DIR": str(work.build)}
    run("cargo", "install", "--quiet", "--locked", "--path", unpacked, "--root", clean / "root", env=env)
    with served(clean / "root/bin/portcullis") as address:
        lock(address)
    return "cargo install --path of the unpacked crate"
