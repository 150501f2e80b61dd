"""A machine that boots systemd as process 1: a container of systemd-nspawn with an /etc of its own and this /usr.

Its network is that of a host of `tests.chaos.hosts`. It takes root and Debian's package systemd-container.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from dashboard.embedded import cluster
from dashboard.processes import bound
from tests.chaos.hosts import Host
from tests.waiting import wait_until

# The accounts and the libraries of /usr, without a password; nothing that would start a service.
COPIED = (
    "passwd",
    "group",
    "nsswitch.conf",
    "ld.so.conf.d",
    "login.defs",
    "pam.d",
    "security",
    "default",
    "alternatives",
)
FOLDERS = ("etc/systemd/system", "usr/lib", "var", "srv", "root", "home", "opt", "proc", "sys", "dev", "run", "tmp")
CGROUPS = ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")
# A Python outside /usr, which the units may not reach in somebody's home, is shown to the machine here.
PYTHON = Path("/usr" if Path(sys.base_prefix).is_relative_to("/usr") else "/opt/python")
PATH = f"{PYTHON}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
BOOT_SECONDS, OFF_SECONDS = 60, 120


@dataclass
class Machine:
    """One machine.

    `root`: its file system as this process sees it. `folders`: its paths of folders of ours, which it can read.
    """

    host: Host
    root: Path
    folders: dict[str, Path]
    container: "subprocess.Popen[bytes]" = field(init=False)

    @property
    def init(self) -> int | None:
        """Its process 1. Other children of the container only prepare it."""
        for child in psutil.Process(self.container.pid).children():
            with contextlib.suppress(FileNotFoundError):
                if re.search(r"^NSpid:\t\d+\t1$", Path(f"/proc/{child.pid}/status").read_text(), re.MULTILINE):
                    return child.pid
        return None

    def run(self, *argv: str, seconds: float = 60, is_checked: bool = True) -> str:
        """Run a program there as root; its output. Fails with the output unless it ends with 0 within the time."""
        namespaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
        entered = ["nsenter", f"--target={self.init}", *namespaces, "--", "/usr/bin/env", "-i", f"PATH={PATH}", *argv]
        done = subprocess.run(entered, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=seconds)
        assert done.returncode == 0 or not is_checked, (
            f"{' '.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def shell(self, line: str, *, seconds: float = 60) -> str:
        """Run a line as an administrator types it in /srv/rowlock."""
        return self.run("/bin/bash", "-ec", f"cd /srv/rowlock\n{line}", seconds=seconds)

    def shown(self, unit: str, name: str) -> str:
        """One property of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def state(self, unit: str) -> str:
        """`active`, `failed`, `inactive` and so on."""
        return self.shown(unit, "ActiveState")

    def has_booted(self) -> bool:
        """True once everything that starts at boot has been started."""
        return self.run("systemctl", "is-active", "multi-user.target", is_checked=False).strip() == "active"

    def boot(self) -> None:
        """Start the machine, and return once it has booted."""
        self.container = start(self.host, self.root, self.folders)
        wait_until(lambda: self.init, seconds=BOOT_SECONDS)
        wait_until(self.has_booted, seconds=BOOT_SECONDS)

    def power_off(self) -> None:
        """Halt the machine in order, as TERM asks; kill it if that takes too long."""
        self.container.terminate()
        try:
            self.container.wait(OFF_SECONDS)
        finally:
            self.container.kill()
            self.container.wait()


@contextlib.contextmanager
def booted(host: Host, folders: dict[str, Path]) -> Iterator[Machine]:
    """A machine that has booted; powered off at the end. `folders`: its paths of folders of ours, which it can read."""
    require_programs()
    with cluster.folder() as folder:
        folder.chmod(0o711)
        lay_out(folder / "root")
        machine = Machine(host, folder / "root", folders)
        try:
            machine.boot()
            machine.run("ldconfig")  # a Python that was moved finds its library
            yield machine
        finally:
            print((folder / "log").read_text()[-4000:])
            machine.power_off()
            if not is_under_systemd():
                remove_cgroups()


def require_programs() -> None:
    """Fails where there can be no machine, in words: a test that did nothing would look like one that passed."""
    assert os.geteuid() == 0, "Only root may boot a container: run this as root."
    assert shutil.which("systemd-nspawn"), "No systemd-nspawn: install Debian's packages systemd-container and dbus."


def is_under_systemd() -> bool:
    """True if this side was booted by systemd, which then gives the container its cgroup."""
    return Path("/run/systemd/system").exists()


def lay_out(root: Path) -> None:
    """Make the file system that it boots from."""
    for name in FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for path in (Path("/etc") / name for name in COPIED):
        subprocess.run(["cp", "-a", path, root / "etc"], check=True)
    shutil.copy("/usr/lib/os-release", root / "usr/lib")
    (root / "etc/ld.so.conf").write_text(f"{PYTHON}/lib\ninclude /etc/ld.so.conf.d/*.conf\n")
    (root / "etc/machine-id").write_text(f"{uuid.uuid4().hex}\n")
    (root / "etc/systemd/system/default.target").symlink_to("/usr/lib/systemd/system/multi-user.target")


def start(host: Host, root: Path, shown: dict[str, Path]) -> "subprocess.Popen[bytes]":
    """Start systemd-nspawn, which ends with the machine."""
    folders = {"/usr": Path("/usr"), **shown}
    if str(PYTHON) not in folders:
        folders[str(PYTHON)] = Path(sys.base_prefix)
    argv = ["systemd-nspawn", "--quiet", "--boot", f"--directory={root}", f"--machine=rowlock-test-{os.getpid()}"]
    argv += [f"--network-namespace-path=/run/netns/{host.namespace}", "--register=no", "--link-journal=no"]
    argv += ["--console=pipe", "--resolv-conf=off", "--timezone=off"]
    argv += [] if is_under_systemd() else ["--keep-unit"]
    argv += [f"--bind-ro={source}:{target}" for target, source in folders.items()]
    argv[0] = str(shutil.which(argv[0]))
    # Version 1 of cgroups does not report in a container that a unit has no process left: a stop would time out.
    environment = {**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
    with (root.parent / "log").open("ab") as log:
        return subprocess.Popen(
            bound(argv, at_parents_death=signal.SIGKILL),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def remove_cgroups() -> None:
    """Remove those that systemd-nspawn leaves where no systemd gave them."""
    for hierarchy in CGROUPS:
        for name in ("payload", "supervisor"):
            for path in sorted(Path(hierarchy, name).glob("**/"), reverse=True):
                with contextlib.suppress(OSError):  # another machine is in it
                    path.rmdir()
