"""What a machine is called by Rust, Debian, Python and npm, and how its programs run on this one."""

from __future__ import annotations

import platform
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A kind of machine that packages are for."""

    # As Linux, Rust and Python name it.
    machine: str
    debian: str
    npm: str
    # The dynamic linker of glibc.
    loader: str

    @property
    def triple(self) -> str:
        """As Rust names it."""
        return f"{self.machine}-unknown-linux-gnu"

    @property
    def is_native(self) -> bool:
        """Whether its programs run on this machine as they are."""
        return self.machine == platform.machine()

    @property
    def runner(self) -> tuple[str, ...]:
        """What a command begins with that runs one of its programs: nothing, or qemu with the C library of Debian's cross compilers."""
        return () if self.is_native else (f"qemu-{self.machine}", "-L", f"/usr/{self.machine}-linux-gnu")

    def binutil(self, name: str) -> str:
        """A program of binutils that reads its programs. Debian's own reads those of this machine only."""
        return name if self.is_native else f"{self.machine}-linux-gnu-{name}"

    def need(self) -> tuple[str, ...]:
        """The programs that its steps run."""
        return (self.binutil("objcopy"), self.binutil("objdump"), *self.runner[:1])


TARGETS = {
    target.machine: target
    for target in (
        Target("x86_64", "amd64", "x64", "ld-linux-x86-64.so.2"),
        Target("aarch64", "arm64", "arm64", "ld-linux-aarch64.so.1"),
    )
}
