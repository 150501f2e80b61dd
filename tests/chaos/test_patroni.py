"""Failovers that Patroni makes, under load: its primary is killed, switched over, cut off, and frozen, in turn.

Everything is switched on (`tests.chaos.duties`) where a standby is synchronous: what was committed is there afterwards.
`make chaos ARGS="tests/chaos/test_patroni.py"`; CHAOS_FAILOVERS=3 is a short form.
"""

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import cycle, groupby, islice, pairwise
from typing import Any

import psycopg
import pytest

from tasks.support.database import PromptConnection
from tests import databases, processes
from tests.chaos import hosts
from tests.chaos.duties import KINDS, OPTIONS, TICKS, Duties
from tests.chaos.hosts import Host
from tests.chaos.runs import WRONGS
from tests.dashboard.alerts.receiver import receiving
from tests.databases import QueueDatabase
from tests.ledger import Effect, Ledger
from tests.patroni import Node, Patroni, haproxy, patroni
from tests.processes import Worker
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

NAME = "rowlock_patroni"
SHORT = "CHAOS_FAILOVERS"  # the variable with another number, whose figures are not kept
JSON_FILE = databases.ROOT / "docs" / "measurements" / "failovers.json"
# How many failovers. `haproxy`: synchronous too, with HAProxy in place of an address that names every node.
MODES = {"synchronous": 20, "asynchronous": 4, "haproxy": 4}
STRIKES = ("kill", "switchover", "cut off", "freeze")
PER_SECOND, AT_ONCE = 500, 10
AGAIN_SECONDS = 10  # 5 are asked for; a busy machine is late
UNSEEN = 200  # tasks of which no standby hears, where none is synchronous
PACE = 0.4  # most tasks last a millisecond, one in a hundred 0.2 s

ORDERED = "SELECT id FROM tasks_task WHERE queue_name = 'default'"  # without those that send alerts
UNFINISHED = "SELECT count(*) FROM tasks_task WHERE status IN ('READY', 'PROCESSING')"
TIMES = "SELECT id, created_at FROM tasks_task WHERE id = ANY(%s)"
SENDERS = "SELECT pid FROM pg_stat_replication"
# What was claimed of the former primary has long begun; all servers of this machine have one clock.
AT_WORK = "SELECT pid, min(began) FROM effect WHERE number > %s AND began > %s GROUP BY pid"


@dataclass
class Site:
    """The nodes and two hosts of workers; the test itself is on another host of that network.

    `url`: of the database, for a client that gives a silent server up after 2 s. `mode`: one of MODES.
    """

    patroni: Patroni
    workers: list[Host]
    mode: str
    url: str
    client: Host


@pytest.fixture(params=MODES)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    names = ("etcd", "pg1", "pg2", "pg3", "workers-1", "workers-2", "proxy", "client")
    is_synchronous = request.param != "asynchronous"
    with contextlib.ExitStack() as stack:
        etcd, *nodes, first, second, proxy, client = stack.enter_context(hosts.network(*names))
        stack.enter_context(client.entered())
        cluster = stack.enter_context(patroni(etcd, nodes, is_synchronous=is_synchronous))
        url = cluster.url(NAME, connect_timeout=2)
        if request.param == "haproxy":
            stack.enter_context(haproxy(proxy, cluster))
            url = f"postgres://postgres@{proxy.address}/{NAME}?connect_timeout=2"
        yield Site(cluster, [first, second], request.param, url, client)


@pytest.fixture
def database(site: Site) -> Iterator[QueueDatabase]:
    databases.migrate(site.patroni.url(NAME))
    database = QueueDatabase(site.url)
    yield database
    database.close()


@pytest.fixture
def duties(site: Site, monkeypatch) -> Iterator[Duties]:
    """With a receiver that the workers' hosts reach."""
    monkeypatch.setenv("ROWLOCK_ALERT_PRIVATE", "1")
    with receiving(host=site.client.address) as channel:
        yield Duties(channel)


class Impatient(QueueDatabase):
    """Gives a session up that is silent, as one to a frozen server is for ever."""

    kind = PromptConnection

    @property
    def connection(self) -> psycopg.Connection:
        connection = super().connection
        connection.answer_seconds = 3.0
        return connection


class Customer(threading.Thread):
    """Enqueues PER_SECOND tasks a second, and keeps the ids that were acknowledged: the judge of what was lost."""

    def __init__(self, url: str, seed: int, duties: Duties | None) -> None:
        super().__init__(daemon=True)
        self.database = Impatient(url)
        self.seed = seed
        self.duties = duties
        self.number = 0
        self.acknowledged: list[int] = []
        self.list: list[str] = []  # the same for `check_tasks`, with their times
        self.unanswered = 0  # they may be there or not
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(AT_ONCE / PER_SECOND):
            try:
                with self.database.connection.transaction():
                    ids = self.enqueue()
                    lines = [f"{row.id} {row.created_at.isoformat()}" for row in self.database.rows(TIMES, ids)]
                self.acknowledged += ids
                self.list += lines
            except psycopg.Error:
                self.unanswered += AT_ONCE
                self.database.close()

    def enqueue(self) -> list[int]:
        ids: list[int] = []
        numbers, self.number = range(self.number, self.number + AT_ONCE), self.number + AT_ONCE
        if self.duties:
            ids = [task_id for number in numbers for task_id in self.duties.enqueue(self.database, number)]
        return ids + self.database.enqueue(handlers.vary, self.seed, PACE, count=AT_ONCE - len(ids))

    def wait_for_more(self, number: int) -> None:
        """Until so many more have been acknowledged."""
        enough = len(self.acknowledged) + number
        wait_until(lambda: len(self.acknowledged) >= enough, seconds=120)

    def leave(self) -> None:
        self.is_over.set()
        self.join()
        self.database.close()


@dataclass(frozen=True)
class Failover:
    """One failover. Seconds from the strike to the new primary, and from there until every worker worked again."""

    strike: str
    away: float
    again: float


@dataclass
class Drill:
    """Strikes at whichever node is the primary while a customer enqueues and workers run."""

    patroni: Patroni
    ledger: Ledger
    customer: Customer
    workers: int
    failovers: list[Failover] = field(default_factory=list)

    def strike(self, name: str) -> None:
        """One failover, from a whole cluster to a whole cluster."""
        primary = self.patroni.wait_until_whole()
        self.customer.wait_for_more(2 * PER_SECOND)
        struck = now()
        with getattr(self, name.replace(" ", "_"))(primary):
            self.successor(primary)
            promoted = now()
            again = self.when_all_work(promoted)
        self.failovers.append(Failover(name, (promoted - struck).total_seconds(), (again - promoted).total_seconds()))
        print(self.failovers[-1], flush=True)

    def successor(self, primary: Node) -> Node:
        """The first other node that takes writes."""
        others = self.patroni.others(primary)
        return wait_until(lambda: next((node for node in others if node.is_primary()), None), seconds=120)

    def when_all_work(self, since: datetime) -> datetime:
        """When the last of all workers has begun a task since then."""
        last = self.ledger.count()

        def found() -> list[tuple[int, datetime]]:
            rows = self.ledger.connection.execute(AT_WORK, (last, since)).fetchall()
            return rows if len(rows) >= self.workers else []

        return max(began for _, began in wait_until(found, seconds=120))

    @contextlib.contextmanager
    def kill(self, primary: Node) -> Iterator[None]:
        if not self.patroni.is_synchronous:
            self.let_standbys_fall_behind(primary)
        primary.kill()
        yield
        primary.start()

    def let_standbys_fall_behind(self, primary: Node) -> None:
        """Until UNSEEN more tasks are acknowledged of which no standby hears.

        To cut the standbys off is not enough: once they are back, the kernel sends what the killed senders had written.
        """
        with psycopg.connect(f"{primary.conninfo} dbname=postgres") as connection:
            for (pid,) in connection.execute(SENDERS).fetchall():
                os.kill(pid, signal.SIGSTOP)
        self.customer.wait_for_more(UNSEEN)

    @contextlib.contextmanager
    def switchover(self, primary: Node) -> Iterator[None]:
        thread = threading.Thread(target=primary.ask, args=("/switchover", {"leader": primary.name}))
        thread.start()
        yield
        thread.join()

    @contextlib.contextmanager
    def cut_off(self, primary: Node) -> Iterator[None]:
        with primary.host.cut_off():
            yield

    @contextlib.contextmanager
    def freeze(self, primary: Node) -> Iterator[None]:
        """Its watchdog resets it in the end. Were it thawed, it could take the leader's key back (Patroni 3.0)."""
        primary.signal_all(signal.SIGSTOP)
        yield
        primary.kill()
        primary.start()


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def workers(site: Site, database: QueueDatabase, ledger: Ledger, duties: Duties) -> Iterator[list[Worker]]:
    """Started after `duties` has set their environment."""
    started: list[Worker] = []
    with processes.ended_at_last(started):
        for host in site.workers:
            with host.entered():
                for kind in KINDS:
                    started.append(processes.start_worker(database.url, ledger.url, *OPTIONS, *kind))
        yield started


@pytest.mark.chaos
def test_failovers_by_patroni(site, database, ledger, workers, duties):
    """With a synchronous standby nothing is lost. Without, what is lost is counted: the queue cannot know of it."""
    seed = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    is_safe = site.patroni.is_synchronous
    customer = Customer(database.url, seed, duties if is_safe else None)
    if is_safe:
        duties.prepare(database, seed)
    customer.start()
    drill = Drill(site.patroni, ledger, customer, sum(kind[1] for kind in KINDS) * len(site.workers))
    drill.when_all_work(now())
    for name in islice(cycle(STRIKES), int(os.environ.get(SHORT, MODES[site.mode]))):
        if is_safe:
            duties.make_incident(database)
        drill.strike(name)
        database.close()  # its session was to the former primary
    site.patroni.wait_until_whole()
    customer.leave()
    if is_safe:
        duties.finish(database)
    wait_until(lambda: not database.value(UNFINISHED), seconds=900, every=1)
    assert set(database.statuses()) == {"COMPLETED"}
    completed = {row.id for row in database.rows(ORDERED)}
    ticks = {row.task_id for row in database.rows(TICKS)}
    done = {effect.task_id for effect in ledger.effects() if effect.ended}
    lost = len(customer.acknowledged) - len(completed & set(customer.acknowledged))
    missing = found_missing(database, customer.list)
    figures = {**figures_of(drill, lost, seed), "found_by_check_tasks": missing}
    figures |= {"outside": duties.account(ledger.effects(), never) if is_safe else {}}
    note(site.mode, figures)
    assert max(failover.again for failover in drill.failovers) < AGAIN_SECONDS
    assert completed <= done, "a task is COMPLETED that never ran"
    assert missing == lost
    assert database.rows("SELECT * FROM tasks_worker WHERE stop_reason = 'convicted'") == []
    assert {name: number for name, number in figures["outside"].items() if number and name.endswith(WRONGS)} == {}
    if is_safe:
        assert lost == 0, "a task that was acknowledged is gone"
        assert figures["ran_twice_at_the_same_time"] == 0
        assert len(completed - ticks) <= len(customer.acknowledged) + customer.unanswered, "nobody asked for a task"
    else:
        assert lost, "the standbys had everything: this test could not fail"
    assert {worker.stop() for worker in workers} == {0}


def found_missing(database: QueueDatabase, lines: list[str]) -> int:
    """How many of these tasks `check_tasks` does not find."""
    environment = {**os.environ, "DATABASE_URL": database.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    command = [sys.executable, "manage.py", "check_tasks", "--enqueued", "-", "--json"]
    ended = subprocess.run(
        command, cwd=databases.ROOT, env=environment, input="\n".join(lines), stdout=subprocess.PIPE, text=True
    )
    return len(json.loads(ended.stdout)["missing"])


def never(pid: int) -> None:
    """When this worker was struck: here only servers are."""


def at_the_same_time(effects: list[Effect]) -> list[int]:
    """Tasks of which one run began before the one before it had ended."""
    runs = sorted(effects, key=lambda effect: (effect.task_id, effect.began))
    return [
        task_id
        for task_id, group in groupby(runs, key=lambda effect: effect.task_id)
        if any(earlier.ended is None or earlier.ended > later.began for earlier, later in pairwise(list(group)))
    ]


def note(mode: str, figures: dict[str, Any]) -> None:
    """Print the figures; the long form keeps them."""
    print(json.dumps({name: value for name, value in figures.items() if name != "each"}))
    if SHORT not in os.environ:
        kept = json.loads(JSON_FILE.read_text()) if JSON_FILE.exists() else {}
        JSON_FILE.write_text(json.dumps({**kept, mode: figures}, indent=1) + "\n")


def figures_of(drill: Drill, lost: int, seed: int) -> dict[str, Any]:
    effects = drill.ledger.effects()
    acknowledged = drill.customer.acknowledged
    return {
        "seed": seed,
        "load_average": round(os.getloadavg()[2], 1),
        "acknowledged": len(acknowledged),
        "unanswered": drill.customer.unanswered,
        "lost": lost,
        "ids_given_twice": len(acknowledged) - len(set(acknowledged)),
        "runs_repeated": len(effects) - len({effect.task_id for effect in effects}),
        "ran_twice_at_the_same_time": len(at_the_same_time(effects)),
        "strikes": {name: times(drill, name) for name in STRIKES},
        "each": [vars(failover) for failover in drill.failovers],
    }


def times(drill: Drill, strike: str) -> dict[str, Any]:
    """Seconds until there was a new primary and from there until all worked, each as the median and the longest."""
    struck = [failover for failover in drill.failovers if failover.strike == strike]
    return {"number": len(struck)} | {
        name: [round(function(values), 2) for function in (statistics.median, max)]
        for name in ("away", "again")
        if (values := [getattr(failover, name) for failover in struck])
    }
