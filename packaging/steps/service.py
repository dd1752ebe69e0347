"""The Debian package on a running system: systemd is the first process of a container, and the service has its whole sandbox."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from steps.engine import BASE, LIMITS, Engine, find
from steps.lock import PATIENCE
from steps.work import PACKAGING, Failed, Skipped, Work, check, fresh, need, run

IMAGE = "localhost/portcullis-systemd"
# What a Debian machine has and the base image of containers lacks.
CONTAINERFILE = f"""FROM {BASE}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd systemd-sysv dbus init-system-helpers
"""
# systemd hands files to a service by a mount, which has to reach the service's namespace. Engines keep mounts private.
INIT = "mount --make-rshared / && exec /lib/systemd/systemd"
UNIT = "portcullis.service"


@dataclass
class Machine:
    """A container in which systemd runs."""

    engine: Engine
    name: str

    def run(self, *arguments: object) -> str:
        """Runs a command in it."""
        return self.engine.run("exec", self.name, *arguments)

    def shows(self, key: str) -> str:
        """A property of the service, as systemd has it."""
        return self.run("systemctl", "show", "-P", key, UNIT).strip()

    def lock(self) -> int:
        """Runs a lock through the loopback of its network. Returns the fencing token."""
        process = self.engine.run("inspect", "-f", "{{.State.Pid}}", self.name).strip()
        code = "import sys; from steps.lock import lock; print(lock(('127.0.0.1', 6379)))"
        return int(run("nsenter", "-t", process, "-n", sys.executable, "-c", code, cwd=PACKAGING))

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Waits until something holds. Fails with the service's log."""
        end = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > end:
                raise Failed(f"{what}: in vain\n{self.run('journalctl', '-u', UNIT, '--no-pager', '-n', '20')}")
            time.sleep(0.05)

    def is_running(self) -> bool:
        """Whether the service is ready."""
        return self.shows("ActiveState") == "active"


def service(work: Work) -> str:
    """Installs the package, and looks at the service: its rights, a crash, a stop, an upgrade, the removal and the purge."""
    need("nsenter")
    engine = find(work)
    if engine.command[0] != "podman":
        raise Skipped("only podman prepares a container for systemd")
    package = work.dist / f"portcullis_{work.version}-1_{work.target.debian}.deb"
    check(package.exists(), f"{package.name} is missing: run the step deb first")
    if not engine.tries("image", "inspect", IMAGE):
        folder = fresh(work.scratch / "systemd")
        (folder / "Containerfile").write_text(CONTAINERFILE)
        engine.build(IMAGE, folder)
    machine = Machine(engine, "portcullis-dist-systemd")
    with engine.removing(machine.name):
        engine.run("run", "-d", "--name", machine.name, *LIMITS, "--privileged", "--systemd=always", IMAGE, "sh", "-c", INIT)
        machine.until("systemd runs", lambda: engine.tries("exec", machine.name, "systemctl", "is-system-running"))
        engine.run("cp", package, f"{machine.name}:/root/{package.name}")
        begin = time.monotonic()
        machine.run("dpkg", "--install", f"/root/{package.name}")
        machine.until("the service starts", machine.is_running)
        token = machine.lock()
        took = time.monotonic() - begin
        version = machine.run("systemctl", "--version").split()[1]
        _rights(machine)
        _ends(machine, token)
        _life(machine, package.name)
    return f"systemd {version}: dpkg --install, the service and a lock in {took:.1f} s; sandbox, crash, stop, upgrade, removal and purge"


def _rights(machine: Machine) -> None:
    """The service runs as a user of its own, without capabilities, behind a filter of system calls, and has its folder alone to write to."""
    process = machine.shows("MainPID")
    lines = machine.run("cat", f"/proc/{process}/status").splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    check(status["Uid"][0] != "0", "the service runs as root")
    for name, value in (("CapEff", "0" * 16), ("CapBnd", "0" * 16), ("NoNewPrivs", "1"), ("Seccomp", "2")):
        check(status[name][0] == value, f"the service has {name} {status[name][0]}, not {value}")
    inside = ("nsenter", "-t", process, "-m", "-S", status["Uid"][0], "-G", status["Gid"][0])
    for place in ("/var/lib/portcullis", "/tmp"):
        machine.run(*inside, "touch", f"{place}/written")
    for place in ("/etc/portcullis", "/usr", "/var/lib"):
        # Not even root can, where the service is.
        touch = ("nsenter", "-t", process, "-m", "touch", f"{place}/written")
        check(not machine.engine.tries("exec", machine.name, *touch), f"the service can write to {place}")
    readable = machine.engine.tries("exec", machine.name, *inside, "cat", "/etc/portcullis/portcullis.conf")
    check(not readable, "the service's user can read the configuration, and so could others")


def _ends(machine: Machine, token: int) -> None:
    """After a crash systemd starts the service again, with the tokens that it had. A stop is an end in order."""
    process = machine.shows("MainPID")
    machine.run("systemctl", "kill", "--signal=KILL", UNIT)
    machine.until("the service restarts", lambda: machine.is_running() and machine.shows("MainPID") != process)
    later = machine.lock()
    check(later > token, f"after a crash the token {later} is not later than {token}")
    machine.run("systemctl", "stop", UNIT)
    check(machine.shows("Result") == "success" and machine.shows("ExecMainStatus") == "0", "the service does not stop in order")
    machine.run("systemctl", "start", UNIT)
    check(machine.lock() > later, "after a stop tokens begin again")


def _life(machine: Machine, package: str) -> None:
    """An upgrade restarts the service with its data, a removal stops it, and a purge deletes its data."""
    process, token = machine.shows("MainPID"), machine.lock()
    machine.run("dpkg", "--install", f"/root/{package}")
    machine.until("the upgrade restarts the service", lambda: machine.is_running() and machine.shows("MainPID") != process)
    check(machine.lock() > token, "after an upgrade tokens begin again")
    machine.run("dpkg", "--remove", "portcullis")
    check(not machine.is_running(), "a removal leaves the service running")
    machine.run("test", "-d", "/var/lib/private/portcullis")
    machine.run("dpkg", "--purge", "portcullis")
    for place in ("/var/lib/private/portcullis", "/var/lib/portcullis", "/etc/portcullis"):
        machine.run("test", "!", "-e", place)
