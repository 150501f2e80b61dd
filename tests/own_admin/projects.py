"""A project as `django-admin startproject` makes it, with the wheel: its settings are changed by two lines."""

import os
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import environ

from dashboard.processes import bound
from tests.databases import QueueDatabase
from tests.waiting import wait_until

PASSWORD = "of this test"
# The two lines, behind what startproject writes; the app and the database are the project's own.
SETTINGS = """
INSTALLED_APPS = ["dashboard.apps.RowlockAdminConfig", "tasks", "dashboard", *INSTALLED_APPS[1:], "shop"]
TASKS = {{"default": {{"BACKEND": "tasks.backend.PostgresBackend", "OPTIONS": {{"MAX_ATTEMPTS": 3}}}}}}
DATABASES = {{"default": {database!r}}}
"""
HANDLERS = """
import time

from tasks import task


@task(ordering_key=lambda name: f"greet:{name}")
def greet(name):
    return f"Hello, {name}"


@task
def hang():
    time.sleep(600)
"""
MODELS = """
from django.db import models


class Product(models.Model):
    name = models.TextField()
"""
ADMIN = """
from django.contrib import admin
from shop.models import Product

admin.site.register(Product)
"""


def in_environment(folder: Path) -> dict[str, str]:
    """Variables of a shell in which this environment is active. Nothing of the checkout or its tests is in it."""
    ours = ("DATABASE_URL", "DJANGO_", "ROWLOCK_", "PYTEST", "PYTHON", "SECRET_KEY")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**plain, "VIRTUAL_ENV": str(folder), "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@dataclass
class Project:
    """A project in `folder`, run in `environment`, on `database`. Processes that it starts end with `exits`."""

    folder: Path
    environment: Path
    database: QueueDatabase
    admin: str = "/admin/"
    variables: dict[str, str] = field(default_factory=dict)
    exits: ExitStack = field(default_factory=ExitStack)

    def create(self, urls: str = "") -> None:
        """Start it, install Rowlock by the two lines, and migrate. `urls` is its URL configuration, if not stock."""
        self.folder.mkdir()
        self.run("django-admin", "startproject", "mysite", ".")
        settings = self.folder / "mysite" / "settings.py"
        database = environ.Env.db_url_config(self.database.url)
        settings.write_text(settings.read_text() + SETTINGS.format(database=dict(database)))
        app = self.folder / "shop"
        app.mkdir()
        for name, text in (("__init__", ""), ("tasks", HANDLERS), ("models", MODELS), ("admin", ADMIN)):
            (app / f"{name}.py").write_text(text)
        if urls:
            (self.folder / "mysite" / "urls.py").write_text(urls)
        self.manage("migrate", "-v0", "--run-syncdb")  # the app has no migrations

    def run(self, *argv: str, **variables: str) -> str:
        """The stdout of a program of its environment; it must succeed."""
        env = {**in_environment(self.environment), **self.variables, **variables}
        done = subprocess.run(argv, cwd=self.folder, env=env, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, f"{argv}: {done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return done.stdout

    def manage(self, *arguments: str, **variables: str) -> str:
        return self.run("python", "manage.py", *arguments, **variables)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """A management command that goes on."""
        return self.launch(arguments[0], [str(self.environment / "bin" / "python"), "manage.py", *arguments])

    def launch(self, name: str, argv: list[str]) -> "subprocess.Popen[bytes]":
        """A program (with its path) that goes on, in a process group of its own, with a log of this name."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                bound(argv, at_parents_death=signal.SIGKILL),
                cwd=self.folder,
                env={**in_environment(self.environment), **self.variables},
                process_group=0,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.exits.callback(lambda: print(f"--- {log} ends with:\n{log.read_text()[-6000:]}"))
        self.exits.callback(kill, process)
        return process

    def serve(self) -> str:
        """Start Django's own web server; the address of the site once it answers."""
        port = free_port()
        server = self.start("runserver", "--noreload", f"127.0.0.1:{port}")
        return self.answering(server, port)

    def answering(self, server: "subprocess.Popen[bytes]", port: int) -> str:
        """The address of the site, once this server answers."""
        base = f"http://127.0.0.1:{port}"

        def site_answers() -> bool:
            assert server.poll() is None, "the server has ended"
            with suppress(OSError), urlopen(f"{base}{self.admin}login/", timeout=60) as answer:
                return answer.status == 200
            return False

        wait_until(site_answers, seconds=120, every=0.1)
        return base


def kill(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL to the process and all its children, which share its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
