"""Run the project's management commands: most tests in this process, others in a separate one."""

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from tests.databases import named


@dataclass(frozen=True)
class Outcome:
    """A command's exit status and output."""

    status: int
    stdout: str
    stderr: str

    @property
    def data(self) -> Any:
        """The JSON object on stdout; fails if there is anything else."""
        return json.loads(self.stdout)


def run(name: str, *argv: object) -> Outcome:
    """Run a command like `manage.py`, but in the test's own transaction and connection."""
    return run_command(load_command_class(get_commands()[name], name), *argv, name=name)


def run_command(command: BaseCommand, *argv: object, name: str = "command") -> Outcome:
    """The same for a command that no installed app has."""
    out, err = io.StringIO(), io.StringIO()
    command._called_from_command_line = command.is_typed = True
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            options = vars(command.create_parser("manage.py", name).parse_args([str(part) for part in argv]))
            command.execute(*options.pop("args", ()), stdout=out, stderr=err, **options)
        except CommandError as error:
            err.write(f"{type(error).__name__}: {error}\n")
            return Outcome(error.returncode, out.getvalue(), err.getvalue())
        except SystemExit as end:
            return Outcome(int(end.code or 0), out.getvalue(), err.getvalue())
    return Outcome(0, out.getvalue(), err.getvalue())


def database_url() -> str:
    """The URL of the test's own database, for other processes."""
    return named(os.environ["DATABASE_URL"], connection.settings_dict["NAME"])


def start(name: str, *argv: object, **popen: Any) -> subprocess.Popen[str]:
    """Start `manage.py NAME …` on the test's database; stdout and stderr are pipes unless `popen` says otherwise."""
    environment = {**os.environ, "DATABASE_URL": database_url(), **popen.pop("env", {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    line = [sys.executable, "manage.py", name, *map(str, argv)]
    return subprocess.Popen(line, cwd=settings.BASE_DIR, env=environment, **{**pipes, **popen})


def run_process(name: str, *argv: object, **popen: Any) -> Outcome:
    """Run `manage.py NAME …` to its end; a hanging command is killed and fails the test."""
    with start(name, *argv, **popen) as process:
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return Outcome(process.returncode, out or "", err or "")
