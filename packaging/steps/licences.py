"""The crates that are linked into the program, and their licences. Most of them ask that their text goes along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from steps.target import Target
from steps.work import run


def linked_crates(target: Target) -> list[dict[str, Any]]:
    """The crates that are linked into the program, by name and version, as `cargo metadata` describes them."""
    metadata = json.loads(run("cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target.triple))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    linked, found = [metadata["resolve"]["root"]], set()
    while linked:
        node = nodes[linked.pop()]
        for dependency in node["deps"]:
            # Neither build scripts nor tests are in the program.
            is_linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if is_linked and dependency["pkg"] not in found:
                found.add(dependency["pkg"])
                linked.append(dependency["pkg"])
    found.discard(metadata["resolve"]["root"])
    return sorted((packages[each] for each in found), key=lambda each: (each["name"], each["version"]))


def third_party(target: Target) -> str:
    """One text: each crate with its version and licence, and the licence files that it has."""
    parts = ["The program portcullis contains these crates.\n"]
    texts: dict[str, list[str]] = {}
    for package in linked_crates(target):
        name = f"{package['name']} {package['version']}"
        parts.append(f"{name}: {package['license'] or 'see its licence below'}\n")
        folder = Path(package["manifest_path"]).parent
        for file in sorted(folder.iterdir()):
            if file.is_file() and file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT")):
                texts.setdefault(file.read_text(errors="replace").strip(), []).append(name)
    # Lua and its licence come inside a crate whose own file does not quote it.
    parts.append("\nLua 5.1: Copyright (C) 1994-2012 Lua.org, PUC-Rio, under the MIT licence.\n")
    for text, names in texts.items():
        parts.append(f"\n{'=' * 78}\n{', '.join(dict.fromkeys(names))}\n{'=' * 78}\n\n{text}\n")
    return "".join(parts)
