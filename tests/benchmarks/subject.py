"""What is measured side by side: Rowlock and its peers, each with a database and a driver, behind the same verbs.

A driver is called with one verb: `setup`; `fill KIND TASKS` (noop, update) empties the queue and fills it; `work
[AT_ONCE]` runs tasks until it is ended; `send` enqueues one task for each line `NUMBER MILLISECONDS` on stdin, at once;
`enqueue HOW SECONDS` enqueues for so long (single, bulk: a thousand at a time).
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psycopg
from psycopg.conninfo import conninfo_to_dict

from dashboard.processes import bound
from tests import databases
from tests.benchmarks.peers import environment
from tests.benchmarks.peers.environment import HERE, Unfit
from tests.benchmarks.pipe import Pipe
from tests.databases import ROOT

COUNTER = "CREATE TABLE counter (id bigint PRIMARY KEY, n integer NOT NULL)"
COUNTER_FILL = "INSERT INTO counter SELECT n, 0 FROM generate_series(1, %s) AS n"
PATIENCE_SECONDS = 120
HANDLERS = "tests.benchmarks.handlers"
FILL = """
INSERT INTO tasks_task (task_path, args)
SELECT %s, CASE WHEN %s = 'noop' THEN '[]' ELSE jsonb_build_array(n) END FROM generate_series(1, %s) AS n
"""


@dataclass(frozen=True)
class Peer:
    """`package` as its registry calls it; `settings` of a drain, for the report; `table`: what holds its tasks.

    A slow one gets one task in `one_in` to drain, and at most `pickups` one by one.
    """

    name: str
    script: str
    package: str
    settings: str
    table: str
    one_in: int = 1
    has_bulk: bool = True
    pickups: int = 2000

    def command(self) -> list[str]:
        """The interpreter and the script. Raises Unfit."""
        if self.script.endswith(".cjs"):
            return [str(environment.node()[0]), str(HERE / self.script)]
        return [str(environment.python()), str(HERE / self.script)]

    def variables(self) -> dict[str, str]:
        return {"NODE_PATH": str(environment.node()[1])} if self.script.endswith(".cjs") else {}


PEERS = (
    Peer(
        "pg-boss",
        "run_pgboss.cjs",
        "pg-boss",
        "batches of 1,000 (its handler gets the whole array, which flatters it), no pause while they are full, NOTIFY",
        table="pgboss.job",
    ),
    Peer(
        "Graphile Worker",
        "run_graphile.cjs",
        "graphile-worker",
        "local queue of 500, 24 jobs at once, completions written together",
        table="graphile_worker._private_jobs",
    ),
    Peer(
        "PgQueuer",
        "run_pgqueuer.py",
        "pgqueuer",
        "asyncpg and uvloop, batches of 500, no limit of tasks at once",
        table="pgqueuer, pgqueuer_log",
    ),
    Peer(
        "Procrastinate",
        "run_procrastinate.py",
        "procrastinate",
        "psycopg, one job at a time",
        table="procrastinate_jobs, procrastinate_events",
        one_in=40,
    ),
    Peer(
        "django-tasks-db",
        "run_django_tasks_db.py",
        "django-tasks-db",
        "one task at a time, a look every 50 ms",
        table="django_tasks_database_dbtaskresult",
        one_in=60,
        has_bulk=False,
        pickups=100,
    ),
)
ROWLOCK = Peer(
    "Rowlock",
    "run_rowlock.py",
    "rowlock",
    "all features on, as `make run` starts it",
    table="tasks_task, tasks_attempt",
)


def go(process: "subprocess.Popen[bytes]") -> None:
    """Give a driver the line that it waits for when it has said that it is ready."""
    assert process.stdin
    process.stdin.write(b"go\n")
    process.stdin.flush()


class Crew:
    """Processes of one measurement; none outlives it."""

    def __init__(self) -> None:
        self.members: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []

    def start(self, argv: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        output = tempfile.TemporaryFile()  # noqa: SIM115  closed by `end`
        process = subprocess.Popen(
            bound(argv, at_parents_death=signal.SIGKILL),
            cwd=ROOT, env=environment, process_group=0, stdin=subprocess.PIPE, stdout=output, stderr=output,
        )  # fmt: skip
        self.members.append((process, output))
        return process

    def check(self) -> None:
        """Raises Unfit when one has ended with an error."""
        for process, output in self.members:
            if process.poll():
                output.seek(0)
                told = output.read().decode(errors="replace").strip().splitlines() or ["nothing"]
                raise Unfit(f"its driver ended with {process.returncode} and wrote: {told[-1][:200]}")

    def wait(self) -> None:
        """Until all have ended. Raises Unfit for an error."""
        for process, _ in self.members:
            if process.stdin:
                process.stdin.close()
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                raise Unfit(f"its driver did not end within {PATIENCE_SECONDS} s") from None
        self.check()

    def finish(self) -> None:
        """Ask all to end in order, and wait for it."""
        for process, _ in self.members:
            process.terminate()
        for process, _ in self.members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_SECONDS)

    def end(self) -> None:
        """Kill what is left."""
        for process, output in self.members:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            output.close()


class Subject:
    """A peer on a database of its own."""

    def __init__(self, peer: Peer, server_url: str, pipe: Pipe) -> None:
        self.peer = peer
        self.pipe = pipe
        self.url = databases.named(server_url, f"bench_{Path(peer.script).stem}")
        self.command = peer.command()

    @property
    def name(self) -> str:
        return self.peer.name

    def prepare(self) -> None:
        """Make the database and its tables."""
        databases.create(self.url)
        self.run("setup")
        self.execute(COUNTER)

    def execute(self, statement: str, *params: object) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement, params)

    def fill(self, kind: str, tasks: int) -> None:
        """Only so many tasks of this kind are there then; they and nothing else are known to the planner."""
        self.fill_counter(kind, tasks)
        self.run("fill", kind, tasks)
        self.execute("CHECKPOINT")

    def fill_counter(self, kind: str, tasks: int) -> None:
        """One row to update for each task."""
        if kind == "update":
            self.execute("TRUNCATE counter")
            self.execute(COUNTER_FILL, tasks)
            self.execute("VACUUM ANALYZE counter")

    def empty(self) -> None:
        """No task is there."""
        self.execute(f"TRUNCATE {self.peer.table} CASCADE")
        self.execute("CHECKPOINT")

    def share(self, tasks: int) -> int:
        """How many of `tasks` it is given."""
        return max(1, tasks // self.peer.one_in)

    def run(self, *words: object) -> None:
        """One verb to its end. Raises Unfit."""
        with self.crew() as crew:
            self.start(crew, *words)
            crew.wait()

    def start(self, crew: Crew, *words: object) -> "subprocess.Popen[bytes]":
        return crew.start([*self.command, *map(str, words)], self.environment())

    def start_worker(self, crew: Crew, at_once: int | None = None) -> None:
        """`at_once`: how many tasks it runs at a time; None: what drains fastest."""
        self.start(crew, "work", at_once or "")

    @contextlib.contextmanager
    def crew(self) -> Iterator[Crew]:
        crew = Crew()
        try:
            yield crew
        finally:
            crew.end()

    def environment(self) -> dict[str, str]:
        parts = conninfo_to_dict(self.url)
        host, user, name = str(parts["host"]), str(parts["user"]), str(parts["dbname"])
        return {
            **os.environ,
            **self.peer.variables(),
            "PGHOST": host,
            "PGUSER": user,
            "PGDATABASE": name,
            "NODE_DATABASE_URL": f"postgres://{user}@{host.replace('/', '%2F')}/{name}",
            "DATABASE_URL": self.url,
            "BENCH_PIPE": str(self.pipe.path),
        }


class Rowlock(Subject):
    """This project, with its own interpreter and worker."""

    def __init__(self, server_url: str, pipe: Pipe) -> None:
        self.peer = ROWLOCK
        self.pipe = pipe
        self.url = databases.named(server_url, "bench_rowlock")
        self.command = [sys.executable, "-m", "tests.benchmarks.peers.run_rowlock"]

    def prepare(self) -> None:
        """A second part on the same server finds it prepared."""
        with contextlib.suppress(psycopg.errors.DuplicateDatabase):
            databases.migrate(self.url)
            self.execute(COUNTER)

    def fill(self, kind: str, tasks: int) -> None:
        self.fill_counter(kind, tasks)
        self.empty()
        self.execute(FILL, f"{HANDLERS}.tasks.{kind}", kind, tasks)
        self.execute("VACUUM ANALYZE tasks_task")
        self.execute("CHECKPOINT")

    def start_worker(self, crew: Crew, at_once: int | None = None) -> None:
        argv = [sys.executable, "manage.py", "run_worker", "-v0", "--concurrency", str(at_once or 1)]
        crew.start(argv, self.environment())

    def environment(self) -> dict[str, str]:
        ours = {"DJANGO_SETTINGS_MODULE": "tests.settings", "ROWLOCK_APPS": HANDLERS}
        return {**super().environment(), **ours}
