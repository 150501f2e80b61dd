"""`manage.py run_worker` as operators start it: its own process group, which tests signal, freeze and kill."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dashboard.processes import bound
from tests.ledger import URL_VARIABLE
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
HANDLERS_APP = "tests.tasks.worker_app"


@dataclass
class Worker:
    """One supervisor and its children. `folder` keeps their stdout and stderr."""

    process: "subprocess.Popen[bytes]"
    folder: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def children(self) -> list[int]:
        """Process ids of its living children."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self.pid).children() if is_living(child)]
        return []

    def members(self) -> list[int]:
        """Every living process of the group, orphans included."""
        everybody = psutil.process_iter()
        return [process.pid for process in everybody if group_of(process) == self.pid and is_living(process)]

    def send(self, number: signal.Signals) -> None:
        """A signal to the supervisor."""
        os.kill(self.pid, number)

    def send_all(self, number: signal.Signals) -> None:
        """A signal to the supervisor and all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def stop(self) -> int:
        """Stop it gracefully; returns its exit status."""
        self.send(signal.SIGTERM)
        return self.wait()

    def wait(self, seconds: float = 60) -> int:
        """The supervisor's exit status, negative for the signal that ended it."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end within {seconds} s; it wrote:\n{self.log()}") from None

    def log(self) -> str:
        return (self.folder / "stderr").read_text()

    def output(self) -> str:
        return (self.folder / "stdout").read_text()

    def report(self) -> dict[str, Any]:
        """The JSON object on its stdout."""
        return json.loads(self.output())

    def wait_until_it_says(self, text: str, *, seconds: float = 30) -> None:
        def said() -> bool:
            return text in self.log()

        wait_until(said, seconds=seconds)


def start_worker(
    database_url: str, ledger_url: str, *arguments: str, checkout: Path = ROOT, **variables: object
) -> Worker:
    """Start `run_worker --json …` with the tests' handlers; `variables` are set in its environment."""
    folder = Path(tempfile.mkdtemp(prefix="worker-"))
    environment = {
        **os.environ,
        "DATABASE_URL": database_url,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "ROWLOCK_APPS": HANDLERS_APP,
        URL_VARIABLE: ledger_url,
        **{name: str(value) for name, value in variables.items()},
    }
    argv = [sys.executable, "manage.py", "run_worker", "--json", *map(str, arguments)]
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            bound(argv, at_parents_death=signal.SIGKILL),
            cwd=checkout,
            env=environment,
            process_group=0,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    return Worker(process, folder)


@contextlib.contextmanager
def ended_at_last(workers: list[Worker], *, is_quiet: bool = False) -> Iterator[None]:
    """Kill all processes of these groups at the end; print their logs for the report of a failure."""
    try:
        yield
    finally:
        for worker in workers:
            worker.send_all(signal.SIGKILL)
        for worker in workers:
            worker.process.wait()
            wait_until(lambda worker=worker: not worker.members())
            if not is_quiet:
                print(f"--- worker {worker.pid} ended with {worker.process.returncode}:\n{worker.log()[-8000:]}")
            shutil.rmtree(worker.folder)


def is_living(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def group_of(process: psutil.Process) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(process.pid)
    return None
