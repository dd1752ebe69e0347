"""Finds the server's program."""

from __future__ import annotations

import os
import shutil
import sysconfig
from typing import Optional


class ProgramNotFoundError(RuntimeError):
    """There is no `portcullis` program. The message says how to get it."""


def find_program(given: Optional[str] = None) -> str:
    """The path of the program: the given one, or what the variable PORTCULLIS names, or the one beside this interpreter's scripts (where the wheel
    puts it), or the one on the PATH. Raises ProgramNotFoundError."""
    for source, named in (("the option", given), ("the variable PORTCULLIS", os.environ.get("PORTCULLIS"))):
        if named:
            found = shutil.which(named)
            if found is None:
                raise ProgramNotFoundError(f"{source} names {named}, which is not a program")
            return found
    found = shutil.which("portcullis", path=sysconfig.get_path("scripts")) or shutil.which("portcullis")
    if found is None:
        raise ProgramNotFoundError(
            "there is no portcullis program. The wheel of portcullis-lock brings it on Linux, and `cargo install --locked --path .` builds it in a clone "
            "of the repository; or name it with --portcullis-exec, or with the variable PORTCULLIS"
        )
    return found
