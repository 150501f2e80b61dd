"""A soak: steady load for long, half of the time beside a transaction that somebody forgot to end, and what grows.

`make soak` takes an hour on a server that syncs to disk, with the web server and its tabs. It writes
docs/measurements/soak.json and a section of docs/reliability.md. Values are compared within the run alone.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg

from tests import databases, processes
from tests.benchmarks.bench import DURABLE
from tests.benchmarks.pages.tabs import Polled, postmaster_of, tab
from tests.chaos.probe import Probe, Sample
from tests.chaos.soak_report import KEYED_SHARE
from tests.databases import ROOT, QueueDatabase
from tests.postgres import throw_away_server
from tests.processes import Worker
from tests.web import gunicorn

BEFORE, HELD, AFTER, DRAINED = "before", "held", "after", "drained"
TICK_SECONDS = 0.05
# By their paths: the models cannot be imported before there is a database.
QUICK, READING, FAILING = (f"tests.tasks.worker_app.tasks.{name}" for name in ("quick", "count_queues", "raise_nul"))
KEYS = 20
FAILING_SHARE = 100  # one in so many fails
RETENTION_SECONDS = 300
# Name, address, seconds between two refreshes: one person's open tabs.
TABS = (("overview", "/admin/", 5.0), ("tasks", "/admin/tasks/task/", 5.0), ("locks", "/admin/ops/locks/", 5.0))


@dataclass(frozen=True)
class Plan:
    """How long, and how many tasks a second arrive; `sample_seconds` between two looks; all of it in seconds.

    `held_seconds`: how long a transaction is open, in the middle; half of the time by default.
    """

    seconds: float = 3600.0
    held_seconds: float | None = None
    rate: int = 200
    sample_seconds: float = 15.0
    children: int = 2
    keyed_share: int = KEYED_SHARE  # 0: no task has a key
    prune_seconds: float = 60.0  # how often finished tasks of some age are deleted; 0: never

    def phase(self, elapsed: float) -> str:
        """The phase so many seconds after the start.

        >>> [Plan(seconds=8).phase(elapsed) for elapsed in (0, 2, 5.9, 6)]
        ['before', 'held', 'held', 'after']
        >>> [Plan(seconds=8, held_seconds=6).phase(elapsed) for elapsed in (0.9, 1, 6.9, 7)]
        ['before', 'held', 'held', 'after']
        """
        held = self.seconds / 2 if self.held_seconds is None else self.held_seconds
        from_middle = elapsed - self.seconds / 2
        return BEFORE if from_middle < -held / 2 else HELD if from_middle < held / 2 else AFTER


@dataclass
class Soak:
    """One run. `start` starts a supervisor with `plan.children` children; `probe` looks at everything there is."""

    plan: Plan
    database: QueueDatabase
    start: Callable[[], Worker]
    probe: Probe
    samples: list[Sample] = field(default_factory=list)
    enqueued: int = 0
    faults: list[Exception] = field(default_factory=list)

    def run(self) -> list[Sample]:
        """The samples, the last one taken when everything was done. Raises the first error of the load."""
        self.probe.workers.append(self.start())
        [first] = self.database.enqueue(QUICK)
        self.database.wait_for(first, "COMPLETED", seconds=60)
        over = threading.Event()
        tasks = [self.load, self.prune] if self.plan.prune_seconds else [self.load]
        threads = [threading.Thread(target=self.guarded, args=(task, over)) for task in tasks]
        try:
            for thread in threads:
                thread.start()
            self.watch()
        finally:
            over.set()
            for thread in threads:
                thread.join()
        if self.faults:
            raise self.faults[0]
        self.database.wait_until_finished(seconds=300)
        self.look(DRAINED)
        return self.samples

    def guarded(self, task: Callable[[threading.Event], None], over: threading.Event) -> None:
        try:
            task(over)
        except Exception as error:  # noqa: BLE001  raised at the end by the thread that waits
            self.faults.append(error)

    def watch(self) -> None:
        """Look again and again; in the middle of the time a transaction is open that does nothing."""
        self.began = time.monotonic()
        with ExitStack() as forgotten:
            while not self.faults and (elapsed := time.monotonic() - self.began) < self.plan.seconds:
                now = self.plan.phase(elapsed)
                if now == HELD and self.samples and self.samples[-1].phase == BEFORE:
                    forgotten.enter_context(forgotten_transaction(self.database.url))
                elif now == AFTER:
                    forgotten.close()
                self.look(now)
                time.sleep(max(0.0, self.began + elapsed + self.plan.sample_seconds - time.monotonic()))

    def look(self, now: str) -> None:
        self.samples.append(self.probe.sample(time.monotonic() - self.began, now, self.enqueued))

    def load(self, over: threading.Event) -> None:
        """So many tasks a second in small transactions: mostly nothing, some with a key and the ORM, some fail."""
        source = QueueDatabase(self.database.url)
        began = time.monotonic()
        with contextlib.closing(source):
            while not over.wait(TICK_SECONDS):
                wanted = int((time.monotonic() - began) * self.plan.rate) - self.enqueued
                for kind, count, key in mixture(self.enqueued, wanted, self.plan.keyed_share):
                    # Whoever has one attempt is claimed alone: only those that fail have.
                    attempts = 1 if kind == FAILING else None
                    source.enqueue(kind, count=count, ordering_key=key, max_attempts=attempts)
                    self.enqueued += count

    def prune(self, over: threading.Event) -> None:
        """As cron would: finished tasks of some minutes go."""
        argv = [sys.executable, "manage.py", "prune_tasks", "-v0", "--older-than", f"{RETENTION_SECONDS}s"]
        environment = {**os.environ, "DATABASE_URL": self.database.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        while not over.wait(self.plan.prune_seconds):
            subprocess.run(argv, cwd=ROOT, env=environment, check=True, stdin=subprocess.DEVNULL)


def mixture(before: int, wanted: int, keyed_share: int = KEYED_SHARE) -> Iterator[tuple[str, int, str | None]]:
    """What the next `wanted` tasks are: handler, how many, ordering key.

    >>> [count for _, count, _ in mixture(0, 10)], list(mixture(5, 0))
    ([8, 1, 1], [])
    >>> [(count, key) for _, count, key in mixture(0, 100, keyed_share=0)]
    [(99, None), (1, None)]
    """
    if wanted <= 0:
        return
    keyed = wanted // keyed_share if keyed_share else 0
    failing = (before + wanted) // FAILING_SHARE - before // FAILING_SHARE
    if free := max(0, wanted - keyed - failing):
        yield QUICK, free, None
    for number in range(keyed):
        yield READING, 1, f"key {(before + number) % KEYS}"
    if failing:
        yield FAILING, failing, None


@contextlib.contextmanager
def forgotten_transaction(url: str) -> Iterator[None]:
    """A session that has looked once and does nothing since; VACUUM may remove nothing that it could still see."""
    with psycopg.connect(url, application_name="psql") as session:
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        session.execute("SELECT count(*) FROM tasks_queue")
        yield


@contextlib.contextmanager
def web_with_tabs(database: QueueDatabase, probe: Probe) -> Iterator[Polled]:
    """gunicorn and one operator's tabs, that refresh themselves."""
    polled, over = Polled(), threading.Event()
    cookie = operators_cookie()
    with gunicorn(database.url, "tests.benchmarks.pages.settings") as (web, port):
        probe.web = web
        parts = [(port, cookie, *part, polled, over) for part in TABS]
        threads = [threading.Thread(target=tab, args=part) for part in parts]
        for thread in threads:
            thread.start()
        try:
            yield polled
        finally:
            over.set()
            for thread in threads:
                thread.join()


def operators_cookie() -> str:
    """Somebody who is logged in, in the database of Django's settings."""
    from django.db import connections

    from tests.people import client_of

    cookie = client_of("Operators").cookies["sessionid"].value
    connections.close_all()
    return f"sessionid={cookie}"


def main(words: list[str]) -> None:
    from tests.chaos import soak_report

    given = parser().parse_args(words)
    held = None if given.held is None else given.held * 60
    sample_seconds = max(0.5, given.minutes * 60 / 240)
    plan = Plan(given.minutes * 60, held, given.rate, sample_seconds, keyed_share=given.keyed)
    with throw_away_server(**DURABLE) as server, ExitStack() as stack:
        database = QueueDatabase(databases.named(server.url, "soak"))
        databases.migrate(database.url)
        stack.callback(database.close)
        set_up_django(database.url)
        workers: list[Worker] = []
        stack.enter_context(processes.ended_at_last(workers, is_quiet=True))

        def start() -> Worker:
            workers.append(processes.start_worker(database.url, database.url, "--concurrency", plan.children))
            return workers[-1]

        probe = Probe(database, psutil.Process(postmaster_of(database.url)))
        polled = stack.enter_context(web_with_tabs(database, probe))
        soak = Soak(plan, database, start, probe)
        samples = soak.run()
        versions = soak_report.surroundings(database.value("SHOW server_version"))
        soak_report.keep(given.report, versions, samples, polled.seconds, plan.keyed_share)
        assert workers[0].stop() == 0, workers[0].log()


def set_up_django(url: str) -> None:
    import django

    os.environ |= {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.benchmarks.pages.settings"}
    django.setup()


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    found.add_argument("--minutes", type=float, default=60.0, help="how long (default: 60)")
    found.add_argument("--held", type=float, help="minutes in which a transaction is open (default: half of them)")
    found.add_argument("--rate", type=int, default=200, help="tasks a second (default: 200)")
    found.add_argument(
        "--keyed", type=int, default=KEYED_SHARE, help="one task in so many has an ordering key; 0: none (default: 5)"
    )
    found.add_argument(
        "--report", type=Path, default=ROOT / "docs", help="the folder of reliability.md and measurements/"
    )
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
