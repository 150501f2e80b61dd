"""Copies of the checkout in folders of their own, with `manage.py up` running in them as an operator would run it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import psutil
import psycopg

from dashboard import embedded
from dashboard.embedded.server import ends_within
from tests.dashboard.servers import ROOT, killed_at_the_end
from tests.waiting import wait_until

CODE = ("Makefile", "manage.py", "gunicorn.conf.py", "dashboard", "orders", "tasks", "templates")
OURS = {"DATABASE_URL", "TEST_DATABASE_URL", "DJANGO_SETTINGS_MODULE", "SECRET_KEY", "PORT", "ADMIN_PASSWORD"}
RECOMPILED = {"PYTHONDONTWRITEBYTECODE"}  # a copy's eight processes would each compile all of it again
MAKES = {"ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"}  # of the `make test` that runs us


@dataclass
class Checkout:
    """A copy of the project; its commands run without the test session's environment."""

    folder: Path

    @property
    def home(self) -> Path:
        return embedded.home(self.folder / "var")

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in OURS | MAKES | RECOMPILED}
        return {**kept, "PYTHONWARNINGS": "default", **variables}

    def manage(self, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Runs a `manage.py` command to its end."""
        return self.run(sys.executable, "manage.py", *arguments, **variables)

    def make(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Runs `make` to its end."""
        return self.run("make", f"PYTHON={sys.executable}", *arguments)

    def run(self, *argv: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        environment = self.environment(**variables)
        return subprocess.run(argv, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60)

    @property
    def url(self) -> str | None:
        """The address of its running server."""
        return embedded.running_url(self.folder / "var")

    def rows(self, statement: str) -> list[tuple]:
        """What its database answers; to look again and again, where a command would start a Python each time."""
        with psycopg.connect(self.url, autocommit=True, application_name="rowlock:test") as connection:
            return connection.execute(statement).fetchall()

    def completed(self) -> int:
        """How many tasks have been completed."""
        [(count,)] = self.rows("SELECT count(*) FROM tasks_task WHERE status = 'COMPLETED'")
        return count


@dataclass
class Site:
    """A running `manage.py up`."""

    checkout: Checkout
    process: "subprocess.Popen[str]"
    port: int
    output_path: Path

    @property
    def output(self) -> str:
        return self.output_path.read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def says(self, text: str, *, seconds: float = 120) -> str:
        """Waits until this regular expression is in the output; its first group, or all of it."""

        def said() -> re.Match[str] | None:
            assert self.process.poll() is None, self.output
            return re.search(text, self.output)

        return wait_until(said, seconds=seconds).group(0)

    def answers(self) -> bool:
        try:
            return urllib.request.urlopen(f"{self.url}/healthz", timeout=5).status == 200
        except OSError:
            return False

    def logs_in(self, password: str) -> bool:
        """Whether the admin takes this password of `admin`, as a browser would send it."""
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        page = browser.open(f"{self.url}/admin/login/?next=/admin/").read().decode()
        token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', page)[1]
        form = {"csrfmiddlewaretoken": token, "username": "admin", "password": password, "next": "/admin/"}
        return browser.open(f"{self.url}/admin/login/", urlencode(form).encode()).url == f"{self.url}/admin/"

    @property
    def up(self) -> psutil.Process:
        """`manage.py up`, whether it was started itself or by `make`."""
        ours = psutil.Process(self.process.pid)
        return ours if "manage.py" in ours.cmdline() else ours.children()[0]

    def processes(self) -> set[psutil.Process]:
        """It and everything it has started that still runs."""
        ours = psutil.Process(self.process.pid)
        return {ours, *ours.children(recursive=True)}

    def child(self, marker: str) -> psutil.Process:
        """The child of `up` whose command line holds this text."""
        [found] = self.children(marker)
        return found

    def children(self, marker: str) -> list[psutil.Process]:
        """The children of `up` whose command lines hold this text."""
        return [one for one in self.up.children() if marker in command_line(one)]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends it a signal; its exit status once it and all that it had started are gone."""
        everything = self.processes()
        self.process.send_signal(number)
        status = self.process.wait(60)
        assert all(ends_within(one, 30) for one in everything)
        return status


def new_checkout(folder: Path) -> Checkout:
    """A copy of the project in `folder`."""
    folder.mkdir(parents=True)
    for name in CODE:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    return Checkout(folder)


@contextmanager
def started(checkout: Checkout, argv: list[str], port: int, **variables: str) -> Iterator[Site]:
    """A command that runs the site in this checkout; killed at the end if it is still there."""
    output_path = checkout.folder / f"output-{port}"
    environment = checkout.environment(**variables)
    with (
        output_path.open("w") as output,
        killed_at_the_end(argv, cwd=checkout.folder, env=environment, stdout=output, stderr=output) as process,
    ):
        yield Site(checkout, process, port, output_path)


def launched(checkout: Checkout, *arguments: str, port: int | None = None, **variables: str):
    """`manage.py up` in this checkout, on a free port unless one is given."""
    port = port or free_port()
    return started(checkout, [sys.executable, "manage.py", "up", "--port", str(port), *arguments], port, **variables)


@contextmanager
def running(checkout: Checkout, *arguments: str, **options) -> Iterator[Site]:
    """The same, once it has printed its address."""
    with launched(checkout, *arguments, **options) as site:
        site.says("Rowlock runs at")
        yield site


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def command_line(process: psutil.Process) -> str:
    """Empty when it has just ended."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""
