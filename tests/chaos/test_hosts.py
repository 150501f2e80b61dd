"""Several hosts: a database, two of workers whose clocks are two hours apart, and the web, each with an address."""

import contextlib
import http.client
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dashboard.processes import bound
from tests import databases, processes, skew
from tests.chaos import hosts
from tests.chaos.gated.tasks import APP, shut_gate, wait_at_the_gate
from tests.chaos.hosts import Host
from tests.databases import QueueDatabase
from tests.ledger import Ledger
from tests.postgres import PrivateServer
from tests.processes import Worker
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

HOUR = 3600
CUTS = 20
LEASE_SECONDS = 3
# A lease ends unseen until the next sweep, and a busy machine is late.
SLACK_SECONDS = 10
WEB_PORT = 8000
TEMPLATE = "rowlock_template"


@dataclass
class Site:
    """The hosts, and the server on the first of them, which the test itself asks past the network."""

    database: Host
    first: Host
    second: Host
    web: Host
    server: PrivateServer

    def address_of(self, database: QueueDatabase) -> str:
        """Its address for the other hosts."""
        return hosts.address_of(self.database, database.url)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        machines = stack.enter_context(hosts.network("database", "workers-1", "workers-2", "web"))
        server = stack.enter_context(hosts.server_on(machines[0]))
        databases.migrate(databases.named(server.url, TEMPLATE))
        yield Site(*machines, server)


@pytest.fixture
def database(site: Site) -> Iterator[QueueDatabase]:
    with databases.copy_of(databases.named(site.server.url, TEMPLATE)) as database:
        yield database


@pytest.fixture
def start_on(site: Site, database: QueueDatabase, ledger: Ledger, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a worker on a host whose clock is wrong by so many seconds; its row, once it is at work."""
    shutil.copy(skew.__file__, tmp_path / "sitecustomize.py")
    workers: list[Worker] = []

    def start(host: Host, clock_is_ahead: int, *arguments: str) -> Any:
        known = {worker.id for worker in workers_of(database, host)}
        variables = {"PYTHONPATH": tmp_path, "SKEW_SECONDS": clock_is_ahead, "ROWLOCK_LEASE_SECONDS": LEASE_SECONDS}
        variables |= {"ROWLOCK_APPS": f"{processes.HANDLERS_APP},{APP}"}
        with host.entered():
            workers.append(processes.start_worker(site.address_of(database), ledger.url, *arguments, **variables))
        return wait_until(lambda: [row for row in workers_of(database, host) if row.id not in known], seconds=60)[0]

    with processes.ended_at_last(workers):
        yield start


def workers_of(database: QueueDatabase, host: Host) -> list[Any]:
    """The rows of the living workers on a host."""
    return database.rows(
        "SELECT * FROM tasks_worker WHERE hostname = %s AND stopped_at IS NULL AND presence_epoch IS NOT NULL",
        host.name,
    )


def test_a_host_that_is_cut_off_loses_its_tasks_within_the_lease_and_may_not_write_them_later(
    site, database, ledger, start_on
):
    lost = [start_on(site.first, HOUR, "--queue", "plain")]
    lost += [start_on(site.first, HOUR, "--queue", "held", "--strategy", "pessimistic")]  # it locks its task's row
    with shut_gate(ledger.url) as gate:
        tasks = [database.enqueue(wait_at_the_gate, queue=queue)[0] for queue in ("plain", "held")]
        wait_until(lambda: all(ledger.effects(task_id) for task_id in tasks))
        other = start_on(site.second, -HOUR)
        with site.first.cut_off():
            cut = now(database)
            meanwhile = database.enqueue(handlers.tell_the_time, count=20)
            starts = [database.wait_for(task_id, "COMPLETED").started_at for task_id in tasks]
            gate.close()
            wait_until(lambda: all(ledger.effects(task_id)[0].ended for task_id in tasks))
            wait_until(lambda: database.statuses() == {"COMPLETED": 2 + len(meanwhile)})
    assert (
        0 < (min(starts) - cut).total_seconds() <= (max(starts) - cut).total_seconds() < LEASE_SECONDS + SLACK_SECONDS
    )
    assert hours_ahead(database, meanwhile) == {-1}
    wait_until(lambda: len(workers_of(database, site.first)) == 2)  # they are back, under new ids
    assert {database.task(task_id).finished_by for task_id in tasks} == {other.id}
    assert {tuple(database.outcomes(task_id)) for task_id in tasks} == {("abandoned",)}
    assert [len(ledger.effects(task_id)) for task_id in tasks] == [2, 2]
    assert not {row.id for row in workers_of(database, site.first)} & {row.id for row in lost}


def test_nobody_is_taken_for_dead_because_the_database_was_out_of_reach_of_all(site, database, ledger, start_on):
    with web_server(site, database) as get, shut_gate(ledger.url):
        start_on(site.first, HOUR)
        start_on(site.second, -HOUR)
        tasks = database.enqueue(wait_at_the_gate, count=2)
        wait_until(lambda: ledger.count() == 2)
        assert get("/readyz") == 200
        with site.database.cut_off():
            cut = now(database)
            wait_until(lambda: get("/readyz") == 503)  # an answer is kept for a second
            assert get("/healthz") == 200
            wait_until(lambda: (now(database) - cut).total_seconds() > 1.5 * LEASE_SECONDS)
        wait_until(lambda: get("/readyz") == 200)
    wait_until(lambda: database.statuses() == {"COMPLETED": 2})
    assert {database.task(task_id).attempt for task_id in tasks} == {1}
    assert database.rows("SELECT * FROM tasks_worker WHERE stop_reason = 'convicted'") == []


@pytest.mark.chaos
def test_hosts_are_cut_off_again_and_again_and_nothing_is_lost(site, database, ledger, start_on):
    """What runs twice was taken back from somebody who was out of reach, and is on record as that."""
    seed = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    chance = random.Random(seed)
    recovered: list[float] = []
    taken_for_dead = 0
    for host, clock_is_ahead in ((site.first, HOUR), (site.second, -HOUR)):
        start_on(host, clock_is_ahead, "--concurrency", "2")
    for _ in range(CUTS):
        database.enqueue(handlers.vary, seed, count=300)
        with shut_gate(ledger.url) as gate:
            recovered += recover_once(database, ledger, chance.choice((site.first, site.second)), gate)
        wait_until(lambda: len(living(database, site)) == 4, seconds=60)
        before = living(database, site)
        cut_off_for(site.database, chance.uniform(0.2, 2.0) * LEASE_SECONDS, database)
        cut_off_for(site.web, 1.5 * LEASE_SECONDS, database)  # it disturbs nobody: time to convict, if anybody did
        taken_for_dead += len(before - living(database, site))
    assert database.wait_until_finished(seconds=180) == {"COMPLETED": CUTS * 302}
    runs = Counter(effect.task_id for effect in ledger.effects())
    repeated = {task_id for task_id, number in runs.items() if number > 1}
    taken_back = {task_id for (task_id,) in database.rows("SELECT task_id FROM tasks_attempt")}
    median, longest = statistics.median(recovered), max(recovered)
    print(f"seed {seed}: {CUTS} cuts of a host, {CUTS} of the database; {len(recovered)} tasks were at work on a host "
          f"that was cut off, and began elsewhere after {median:.1f} s (median), {longest:.1f} s (longest); "
          f"of {len(runs)} tasks {len(repeated)} ran twice, {len(taken_back)} were taken back; "
          f"{taken_for_dead} workers were taken for dead that only the database's host was cut off from")  # fmt: skip
    assert taken_for_dead == 0
    assert len(runs) == CUTS * 302
    assert repeated <= taken_back
    assert longest < LEASE_SECONDS + SLACK_SECONDS


def living(database: QueueDatabase, site: Site) -> set[str]:
    """The ids of the workers of both hosts."""
    return {worker.id for host in (site.first, site.second) for worker in workers_of(database, host)}


def recover_once(database: QueueDatabase, ledger: Ledger, host: Host, gate: psycopg.Connection) -> list[float]:
    """Cut the host off while two tasks run somewhere; seconds until those that it ran have begun elsewhere."""
    tasks = database.enqueue(wait_at_the_gate, count=2)
    wait_until(lambda: all(ledger.effects(task_id) for task_id in tasks), seconds=60)
    its_own = {worker.id for worker in workers_of(database, host)}
    held = [task_id for task_id in tasks if database.task(task_id).claimed_by in its_own]
    with host.cut_off():
        cut = now(database)
        wait_until(lambda: all(len(ledger.effects(task_id)) == 2 for task_id in held), seconds=60)
    gate.close()
    return [(ledger.effects(task_id)[1].began - cut).total_seconds() for task_id in held]


def cut_off_for(host: Host, seconds: float, database: QueueDatabase) -> None:
    """So long nobody reaches the host."""
    with host.cut_off():
        cut = now(database)
        wait_until(lambda: (now(database) - cut).total_seconds() > seconds)


def now(database: QueueDatabase):
    """The clock that decides."""
    return database.value("SELECT clock_timestamp()")


def hours_ahead(database: QueueDatabase, told: list[int]) -> set[int]:
    """By how much the clocks of those are wrong who ran these tasks."""
    rows = database.rows("SELECT round(return_value::text::float8 / 3600) FROM tasks_task WHERE id = ANY(%s)", told)
    return {int(hours) for (hours,) in rows}


@contextlib.contextmanager
def web_server(site: Site, database: QueueDatabase) -> Iterator[Callable[[str], int]]:
    """gunicorn on its host, and the status of a page of it as the second host of workers sees it."""
    variables = {
        **os.environ,
        "DATABASE_URL": site.address_of(database),
        "ALLOWED_HOSTS": site.web.address,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "GUNICORN_CMD_ARGS": f"--bind {site.web.address}:{WEB_PORT} --log-level warning",
    }

    def get(path: str) -> int:
        with site.second.entered(), contextlib.closing(http.client.HTTPConnection(site.web.address, WEB_PORT)) as tab:
            tab.request("GET", path)
            return tab.getresponse().status

    def serves() -> bool:
        with contextlib.suppress(OSError):
            return get("/healthz") == 200
        return False

    argv = bound([sys.executable, "-m", "gunicorn"], at_parents_death=signal.SIGKILL)
    with site.web.entered():
        process = subprocess.Popen(argv, cwd=databases.ROOT, env=variables)
    with process:
        try:
            wait_until(serves, seconds=60)
            yield get
        finally:
            process.terminate()
            process.wait(30)
