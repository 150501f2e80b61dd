"""Hundreds of worker processes on twenty hosts beside one server: what they cost, and what happens to them together.

`python -m tests.chaos.fleet` adds hosts of 25 processes and measures after the first, fourth, tenth and twentieth. It
takes root and some minutes, and writes docs/measurements/fleet.json. What grows faster than the hosts is a fault.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import django
import psutil

# Handlers are imported here for their paths alone.
os.environ |= {"DATABASE_URL": "postgres:///fleet", "DJANGO_SETTINGS_MODULE": "tests.settings"}
django.setup()

from tests import databases, outages, processes  # noqa: E402
from tests.benchmarks.idle import TRANSACTIONS, cpu_seconds  # noqa: E402
from tests.benchmarks.report import surroundings  # noqa: E402
from tests.chaos import hosts  # noqa: E402
from tests.chaos.gated.tasks import APP, shut_gate, wait_at_the_gate  # noqa: E402
from tests.chaos.hosts import Host  # noqa: E402
from tests.databases import ROOT, QueueDatabase  # noqa: E402
from tests.ledger import Ledger  # noqa: E402
from tests.postgres import PrivateServer, throw_away_server  # noqa: E402
from tests.processes import HANDLERS_APP, Worker  # noqa: E402
from tests.tasks.worker_app import tasks as handlers  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

STEPS = (1, 4, 10, 20)  # hosts
CHILDREN = 25
SETTLED_SECONDS, IDLE_SECONDS = 12.0, 10.0  # an idle session tells the server's counters after up to ten seconds
TASKS, PAUSE_SECONDS = 40, 0.1
PATIENCE = 300
PRESENT = """
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted
AND classid::bigint = hashtext('rowlock:presence:' || current_schema())::bigint & 4294967295
"""
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
AT_THE_GATE = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"  # in the ledger
LOST = "SELECT count(*) FROM tasks_attempt WHERE outcome = 'abandoned'"
CONVICTED = "SELECT count(*) FROM tasks_worker WHERE stop_reason = 'convicted'"


@dataclass
class Figures:
    """At one size of the fleet. Shares of a core, MiB of memory for each process, seconds, milliseconds as named."""

    processes: int
    start_seconds: float
    sessions: int
    idle_transactions_a_second: float
    idle_database_percent: float
    idle_workers_percent: float
    memory_mib: float
    pickup_p50_ms: float
    pickup_p95_ms: float
    transactions_a_task: float
    overview_p95_ms: float
    workers_page_p95_ms: float
    killed_host_seconds: float | None = None
    killed_host_transactions: int | None = None
    restart_seconds: float | None = None
    declared_dead_by_restart: int | None = None


@dataclass
class Fleet:
    """The server and the workers of all hosts so far."""

    on: Host
    server: PrivateServer
    database: QueueDatabase
    ledger: Ledger
    workers: list[Worker] = field(default_factory=list)

    @property
    def size(self) -> int:
        return CHILDREN * len(self.workers)

    def add(self, host: Host) -> None:
        with host.entered():
            self.workers.append(
                processes.start_worker(
                    hosts.address_of(self.on, self.database.url),
                    self.ledger.url,
                    "--concurrency",
                    CHILDREN,
                    ROWLOCK_APPS=f"{HANDLERS_APP},{APP}",
                )
            )

    def wait_until_present(self) -> None:
        wait_until(lambda: self.database.value(PRESENT) == self.size, seconds=PATIENCE)

    def cost(self) -> tuple[int, float, float]:
        """Transactions, and the processor seconds of the database and of all workers, so far."""
        transactions = self.database.value(TRANSACTIONS)
        workers = sum(cpu_seconds(psutil.Process(worker.pid)) for worker in self.workers)
        return transactions, cpu_seconds(psutil.Process(self.server.server.process.pid)), workers

    def idle(self) -> tuple[float, float, float]:
        """A second of them while nothing is to be done."""
        time.sleep(SETTLED_SECONDS)
        before, began = self.cost(), time.monotonic()
        time.sleep(IDLE_SECONDS)
        seconds = time.monotonic() - began
        transactions, server, workers = (
            (after - first) / seconds for first, after in zip(before, self.cost(), strict=True)
        )
        return transactions, server, workers

    def pickup(self, idle_transactions: float) -> tuple[list[float], float]:
        """Milliseconds from before each enqueue to the handler, one at a time; transactions that one task makes."""
        before, began, waits = self.database.value(TRANSACTIONS), time.monotonic(), []
        for _ in range(TASKS):
            sent = self.ledger.now()
            [task_id] = self.database.enqueue(handlers.work)
            [effect] = wait_until(lambda task_id=task_id: self.ledger.effects(task_id))  # on a server of its own
            waits.append(1000 * (effect.began - sent).total_seconds())
            time.sleep(PAUSE_SECONDS)
        made = self.database.value(TRANSACTIONS) - before - idle_transactions * (time.monotonic() - began)
        return sorted(waits), made / TASKS

    def page(self, name: str) -> float:
        """Milliseconds that one of the benchmark's pages takes at most, of nineteen in twenty; nothing is shared."""
        with tempfile.NamedTemporaryFile(suffix=".json") as found:
            words = ["--url", self.database.url, "--only", name, "--json", found.name]
            subprocess.run(
                [sys.executable, "-m", "tests.benchmarks.pages", *words],
                cwd=ROOT,
                check=True,
                stdout=subprocess.DEVNULL,
            )
            pages = json.loads(Path(found.name).read_text())["pages"]
        assert {status for page in pages for status in page["statuses"]} == {200}
        return 1000 * max(page["p95"] for page in pages)

    def kill_a_host(self, host: Host) -> tuple[float, int]:
        """Every process of the last host while all run a task: seconds until its tasks are back, transactions."""
        with shut_gate(self.ledger.url):
            self.database.enqueue(wait_at_the_gate, count=self.size)
            # Claimed is not enough: for some seconds hundreds of handlers connect to the ledger.
            wait_until(lambda: self.ledger.connection.execute(AT_THE_GATE).fetchone() == (self.size,), seconds=PATIENCE)
            lost, before, began = self.database.value(LOST), self.database.value(TRANSACTIONS), time.monotonic()
            self.workers.pop().send_all(9)
            wait_until(lambda: self.database.value(LOST) == lost + CHILDREN, seconds=PATIENCE)
            seconds, made = time.monotonic() - began, self.database.value(TRANSACTIONS) - before
        self.add(host)
        self.database.wait_until_finished(seconds=PATIENCE)
        self.wait_until_present()
        return seconds, made

    def restart(self) -> tuple[float, int]:
        """The server as after a power cut: seconds until all are present again, and how many were declared dead."""
        convicted = self.database.value(CONVICTED)
        with self.on.entered():
            outages.restart(self.server, self.database)
        began = time.monotonic()
        self.wait_until_present()
        return time.monotonic() - began, self.database.value(CONVICTED) - convicted

    def memory(self) -> float:
        """MiB of one process, in which shared pages are shared out."""
        family = [psutil.Process(pid) for worker in self.workers for pid in worker.members()]
        return sum(process.memory_full_info().pss for process in family) / self.size / 2**20

    def measure(self, start_seconds: float, last: Host) -> Figures:
        transactions, server, workers = self.idle()
        waits, made = self.pickup(transactions)
        figures = Figures(
            self.size, start_seconds, self.database.value(SESSIONS), transactions, 100 * server, 100 * workers,
            self.memory(), statistics.median(waits), waits[int(0.95 * len(waits))], made,
            self.page("overview"), self.page("workers"),
        )  # fmt: skip
        if len(self.workers) > 1:
            figures.killed_host_seconds, figures.killed_host_transactions = self.kill_a_host(last)
        figures.restart_seconds, figures.declared_dead_by_restart = self.restart()
        return figures


def main() -> None:
    given = argparse.ArgumentParser(prog="python -m tests.chaos.fleet", description=__doc__)
    given.add_argument("--hosts", type=int, default=STEPS[-1], help="at most so many (default: 20)")
    given.add_argument("--report", type=Path, default=ROOT / "docs" / "measurements", help="folder of fleet.json")
    chosen = given.parse_args()
    found: list[Figures] = []
    with ExitStack() as stack:
        names = ("database", *(f"host-{number}" for number in range(1, chosen.hosts + 1)))
        on, *machines = stack.enter_context(hosts.network(*names))
        server = stack.enter_context(hosts.server_on(on, max_connections="1300"))
        ledger_server = stack.enter_context(throw_away_server(max_connections="1300"))
        databases.migrate(databases.named(server.url, "fleet"))
        database = QueueDatabase(databases.named(server.url, "fleet"))
        ledger = Ledger(databases.named(ledger_server.url, "postgres"))
        fleet = Fleet(on, server, database, ledger)
        stack.enter_context(processes.ended_at_last(fleet.workers, is_quiet=True))
        for steps in (steps for steps in STEPS if steps <= chosen.hosts):
            began = time.monotonic()
            for host in machines[len(fleet.workers) : steps]:
                fleet.add(host)
            fleet.wait_until_present()
            found.append(fleet.measure(time.monotonic() - began, machines[steps - 1]))
            print(json.dumps(asdict(found[-1])), flush=True)
    told = surroundings("PostgreSQL 18", "python -m tests.chaos.fleet")
    text = {"date": datetime.now(UTC).date().isoformat(), **told, "fleets": [asdict(figures) for figures in found]}
    (chosen.report / "fleet.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
