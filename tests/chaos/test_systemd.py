"""The systemd units, installed by the commands of docs/deploying.md on a machine that boots systemd.

The machine is a container. Its PostgreSQL is on another host; its packages are ours, so that nothing is downloaded.
"""

import contextlib
import http.client
import re
import shutil
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tasks import conf
from tests import databases, processes
from tests.chaos import hosts
from tests.chaos.gated.tasks import APP, shut_gate, wait_at_the_gate
from tests.chaos.hosts import Host
from tests.chaos.machine import Machine, booted
from tests.databases import ROOT, QueueDatabase
from tests.ledger import URL_VARIABLE, Ledger
from tests.postgres import PrivateServer
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

pytestmark = pytest.mark.chaos

PAGE = ROOT / "docs" / "deploying.md"
DEPLOY = ROOT / "docs" / "deploy"
INSTALL = "How do I install it with systemd?"
# What this machine does otherwise: the packages are mounted into the environment, and nobody answers a prompt.
OTHERWISE = {
    r"python3 -m venv .venv && .*": "python3 -m venv --without-pip .venv",
    r"createsuperuser$": "createsuperuser --no-input --username=admin --email=admin@example.com",
}
PACKAGES = Path("/srv/rowlock") / ".venv" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
POSTGRESQL = "/opt/postgresql"
WEB, WORKERS = "rowlock-web", ("rowlock-worker@1", "rowlock-worker@2")
SITE, PORT = "rowlock.example.com", 8000
JOBS = sorted(path.stem for path in DEPLOY.glob("*.timer"))
GRACE_SECONDS = conf.SETTINGS["GRACE_SECONDS"].default
WATCHDOG_SECONDS = 60
SLACK_SECONDS = 10  # a busy machine is late
REACHABLE = "/srv/rowlock/var/written"
OUT_OF_REACH = ("/srv/rowlock/written", "/srv/written", "/etc/written", "/var/lib/written")


@dataclass
class Deployment:
    """The machine, the host of its database and of its visitors, and the database as this process reaches it."""

    machine: Machine
    neighbour: Host
    server: PrivateServer
    database: QueueDatabase
    ledger: Ledger

    def get(self, path: str) -> int:
        """The status of a page, as the reverse proxy asks for it. The thread has to be on the neighbour."""
        proxied = {"Host": SITE, "X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.1"}
        connection = http.client.HTTPConnection(self.machine.host.address, PORT, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=proxied)
            answer = connection.getresponse()
            answer.read()
            return answer.status

    def unit_of(self, pid: int) -> str:
        """The unit that a process of the machine belongs to."""
        return self.machine.run("ps", "-o", "unit=", "-p", str(pid)).strip().removesuffix(".service")

    def processes_of(self, unit: str) -> set[int]:
        """The processes that the unit's main process has started."""
        main = self.machine.shown(unit, "MainPID")
        return {int(pid) for pid in self.machine.run("ps", "-o", "pid=", "--ppid", main, is_checked=False).split()}

    def hold(self) -> tuple[int, str]:
        """Enqueue a task that waits at the shut gate: its id, and the unit that runs it."""
        [task_id] = self.database.enqueue(wait_at_the_gate)
        [run] = wait_until(lambda: self.ledger.effects(task_id))
        return task_id, self.unit_of(run.pid)


def documented(heading: str) -> list[str]:
    """The commands that docs/deploying.md gives an administrator under a heading, in the machine's form."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    text = "".join(re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
    for written, ours in OTHERWISE.items():
        text, found = re.subn(written, ours, text, flags=re.MULTILINE)
        assert found == 1, written
    return [line.removeprefix("# ") for line in re.sub(r"\\\n\s*", "", text).splitlines()]


def edit(path: Path, values: dict[str, str]) -> None:
    """Fill in /etc/rowlock.env, as its comments ask."""
    text = path.read_text()
    for name, value in values.items():
        line = f"{name}={value}"
        text, found = re.subn(rf"^(?:# )?{name}=.*$", lambda _, line=line: line, text, flags=re.MULTILINE)
        text += "" if found else f"{line}\n"
    path.write_text(text)


def install(machine: Machine, variables: dict[str, str]) -> dict[str, float]:
    """Do what the page says; the seconds that each command took."""
    target = machine.root / "srv" / "rowlock"
    ignored = shutil.ignore_patterns(".git", ".venv", "var", ".*_cache", "__pycache__")
    shutil.copytree(ROOT, target, ignore=ignored, dirs_exist_ok=True)
    took = {}
    for line in documented(INSTALL):
        began = time.monotonic()
        machine.shell(line, seconds=180)
        took[line.split(" #")[0].strip()] = round(time.monotonic() - began, 2)
        if "/etc/rowlock.env" in line:
            edit(machine.root / "etc/rowlock.env", variables)
    return took


@pytest.fixture(scope="module")
def deployment(tmp_path_factory) -> Iterator[Deployment]:
    with contextlib.ExitStack() as stack:
        neighbour, host = stack.enter_context(hosts.network("database", "rowlock"))
        server = stack.enter_context(hosts.server_on(neighbour))
        ledger = Ledger(new_database(server, "ledger"))
        stack.callback(ledger.close)
        database = stack.enter_context(contextlib.closing(QueueDatabase(server.url)))
        machine = stack.enter_context(booted(host, shown(server, tmp_path_factory.mktemp("programs"))))
        stack.callback(
            lambda: print(machine.run("journalctl", "--no-pager", "--lines=400", "--unit=rowlock-*", is_checked=False))
        )
        variables = {
            "DATABASE_URL": address_of(neighbour, server.url),
            "PGHOST": neighbour.address,
            "PGUSER": str(urlsplit(server.url).username),
            "PGPASSWORD": hosts.PASSWORD,
            "SECRET_KEY": "that-of-a-test-" * 4,
            "ROWLOCK_APPS": f"{processes.HANDLERS_APP},{APP}",
            URL_VARIABLE: address_of(neighbour, ledger.url),
        }
        print(install(machine, variables))
        yield Deployment(machine, neighbour, server, database, ledger)


def shown(server: PrivateServer, programs: Path) -> dict[str, Path]:
    """Folders of ours for the machine: the packages, and a pg_dump of the server's version among its programs."""
    installed = server.server.installation
    pg_dump = programs / "pg_dump"
    pg_dump.write_text(f'#!/bin/sh\nexec {POSTGRESQL}/{installed.parent.name}/{installed.name}/bin/pg_dump "$@"\n')
    pg_dump.chmod(0o755)
    programs.chmod(0o755)
    return {
        str(PACKAGES): Path(sysconfig.get_path("purelib")),
        POSTGRESQL: installed.parents[1],
        "/usr/local/sbin": programs,
    }


def address_of(neighbour: Host, url: str) -> str:
    """The URL of a database for the machine, as libpq wants it."""
    return hosts.address_of(neighbour, url).replace(" ", "%20")


def new_database(server: PrivateServer, name: str) -> str:
    url = databases.named(server.url, name)
    databases.create(url)
    return url


@dataclass
class Load:
    """Requests for a page and a producer of tasks, from the neighbour, until the end of the block."""

    deployment: Deployment
    answers: Counter[int | str] = field(default_factory=Counter)  # a status, or the name of an error
    enqueued: list[int] = field(default_factory=list)
    longest_seconds: float = 0.0  # between two good answers
    over: threading.Event = field(default_factory=threading.Event)

    def visit(self) -> None:
        last = time.monotonic()
        with self.deployment.neighbour.entered():
            while not self.over.wait(0.01):
                try:
                    answer: int | str = self.deployment.get("/admin/login/")
                except (OSError, http.client.HTTPException) as error:
                    answer = type(error).__name__
                self.answers[answer] += 1
                if answer == 200:
                    self.longest_seconds = max(self.longest_seconds, time.monotonic() - last)
                    last = time.monotonic()

    def enqueue(self) -> None:
        with contextlib.closing(QueueDatabase(self.deployment.server.url)) as source:
            while not self.over.wait(0.05):
                self.enqueued += source.enqueue(handlers.work, 0.02)

    def __enter__(self) -> "Load":
        self.threads = [threading.Thread(target=self.visit), threading.Thread(target=self.enqueue)]
        for thread in self.threads:
            thread.start()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def goes_on(self) -> None:
        """Return once another twenty pages have been answered and another twenty tasks have ended."""
        pages, tasks = self.answers[200] + 20, self.deployment.ledger.count() + 20
        wait_until(lambda: self.answers[200] > pages and self.deployment.ledger.count() > tasks, seconds=60)


def all_completed_once(deployment: Deployment, tasks: list[int]) -> bool:
    statement = "SELECT status, attempt, count(*) FROM tasks_task WHERE id = ANY(%s) GROUP BY status, attempt"
    return deployment.database.rows(statement, tasks) == [("COMPLETED", 1, len(tasks))]


def test_the_documented_commands_start_everything(deployment):
    machine = deployment.machine
    assert machine.run("systemctl", "list-units", "--failed", "--no-legend") == ""
    assert {unit: machine.state(unit) for unit in (WEB, *WORKERS)} == dict.fromkeys((WEB, *WORKERS), "active")
    assert (machine.shown("rowlock-migrate", "Result"), machine.state("rowlock-migrate")) == ("success", "inactive")
    timers = [f"{job}.timer" for job in JOBS]
    enabled = machine.run("systemctl", "is-enabled", WEB, *WORKERS, *timers)
    assert set(enabled.split()) == {"enabled"}
    assert {timer: machine.state(timer) for timer in timers} == dict.fromkeys(timers, "active")
    with deployment.neighbour.entered():
        assert [deployment.get(path) for path in ("/healthz", "/readyz", "/admin/login/")] == [200, 200, 200]
    tasks = deployment.database.enqueue(handlers.work, count=20)
    wait_until(lambda: all_completed_once(deployment, tasks))


def test_a_killed_supervisor_is_restarted_and_its_task_runs_elsewhere(deployment):
    machine, ledger = deployment.machine, deployment.ledger
    with shut_gate(ledger.url):
        task_id, unit = deployment.hold()
        killed = ledger.now()
        machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", unit)
        second = wait_until(lambda: ledger.effects(task_id)[1:])[0]
        taken_up = (second.began - killed).total_seconds()
        assert {unit, deployment.unit_of(second.pid)} == set(WORKERS)
        wait_until(lambda: machine.state(unit) == "active" and machine.shown(unit, "NRestarts") == "1")
    print(f"taken up after {taken_up:.1f} s, restarted after {(ledger.now() - killed).total_seconds():.1f} s")
    assert deployment.database.wait_for(task_id, "COMPLETED").attempt == 2
    assert deployment.database.outcomes(task_id) == ["abandoned"]
    assert taken_up < SLACK_SECONDS


def test_a_frozen_supervisor_is_killed_by_the_watchdog_and_its_task_runs_elsewhere(deployment):
    """Until then its worker keeps the task: it renews its lease itself."""
    machine, ledger = deployment.machine, deployment.ledger
    with shut_gate(ledger.url):
        task_id, unit = deployment.hold()
        restarts, frozen = int(machine.shown(unit, "NRestarts")), ledger.now()
        machine.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", unit)
        second = wait_until(lambda: ledger.effects(task_id)[1:], seconds=WATCHDOG_SECONDS + SLACK_SECONDS)[0]
        taken_up = (second.began - frozen).total_seconds()
        assert {unit, deployment.unit_of(second.pid)} == set(WORKERS)
        wait_until(lambda: machine.state(unit) == "active" and int(machine.shown(unit, "NRestarts")) > restarts)
    print(f"taken up after {taken_up:.1f} s, restarted after {(ledger.now() - frozen).total_seconds():.1f} s")
    assert deployment.database.wait_for(task_id, "COMPLETED").attempt == 2
    assert "watchdog" in machine.run("journalctl", "--no-pager", f"--unit={unit}").lower()


def test_a_reload_of_the_pages_fails_no_request(deployment):
    machine = deployment.machine
    main, before = machine.shown(WEB, "MainPID"), deployment.processes_of(WEB)
    with Load(deployment) as load:
        began = time.monotonic()
        machine.run("systemctl", "reload", WEB)
        wait_until(lambda: not before & deployment.processes_of(WEB))
        took = time.monotonic() - began
        load.goes_on()
    print(f"reload: new processes after {took:.1f} s, {load.answers}, at most {load.longest_seconds:.1f} s for one")
    assert load.answers.keys() == {200}
    assert machine.shown(WEB, "MainPID") == main


def test_a_restart_of_the_pages_refuses_connections_and_breaks_none(deployment):
    with Load(deployment) as load:
        deployment.machine.run("systemctl", "restart", WEB)
        load.goes_on()
    print(f"restart: {load.answers}, {load.longest_seconds:.1f} s without an answer")
    assert load.answers.keys() <= {200, "ConnectionRefusedError"}
    wait_until(lambda: all_completed_once(deployment, load.enqueued))


def test_a_restart_of_the_workers_lets_running_tasks_finish(deployment):
    machine, ledger = deployment.machine, deployment.ledger
    mains = {unit: machine.shown(unit, "MainPID") for unit in WORKERS}
    with Load(deployment) as load, shut_gate(ledger.url) as gate:
        task_id, unit = deployment.hold()
        began = time.monotonic()
        machine.run("systemctl", "restart", "--no-block", "rowlock-worker@*")
        wait_until(lambda: machine.state(unit) == "deactivating")
        gate.close()
        wait_until(lambda: {machine.state(unit) for unit in WORKERS} == {"active"})
        took = time.monotonic() - began
        load.goes_on()
    print(f"both workers restarted within {took:.1f} s, beside {len(load.enqueued)} tasks and {load.answers}")
    assert not {machine.shown(unit, "MainPID") for unit in WORKERS} & set(mains.values())
    wait_until(lambda: all_completed_once(deployment, [*load.enqueued, task_id]))
    assert {len(ledger.effects(each)) for each in [*load.enqueued, task_id]} == {1}
    assert load.answers.keys() == {200}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_ends_well(deployment, job):
    machine = deployment.machine
    began = time.monotonic()
    machine.run("systemctl", "start", job)
    print(f"{job}: {time.monotonic() - began:.1f} s")
    assert (machine.shown(job, "Result"), machine.shown(job, "ExecMainStatus")) == ("success", "0")


@pytest.mark.parametrize("unit", [WEB, WORKERS[0]])
def test_the_sandbox_holds(deployment, unit):
    machine, main = deployment.machine, deployment.machine.shown(unit, "MainPID")
    inside = ("nsenter", f"--target={main}", "--mount", "--")
    machine.run(*inside, "touch", REACHABLE)
    for path in OUT_OF_REACH:
        refused = machine.run(*inside, "sh", "-c", f"touch {path} 2>&1 || true")
        assert "Read-only file system" in refused, path
    account = ("runuser", "--user", "rowlock", "--")
    assert machine.run(*account, "sh", "-c", "test -e /proc/1 && echo visible").strip() == "visible"
    assert machine.run(*inside, *account, "sh", "-c", "test -e /proc/1 || echo hidden").strip() == "hidden"
    assert "Permission denied" in machine.run(*inside, *account, "sh", "-c", "ls /home 2>&1 || true")
    limits = machine.run("cat", f"/proc/{main}/limits")
    assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE), limits
    status = dict(line.split(":\t", 1) for line in machine.run("cat", f"/proc/{main}/status").splitlines())
    assert {name: status[name] for name in ("CapBnd", "NoNewPrivs", "Seccomp", "Umask")} == {
        "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2", "Umask": "0077",
    }  # fmt: skip


def test_a_stop_ends_everything_in_time(deployment):
    """A task that outlives the grace period is ended, and ready for the next worker."""
    machine, database = deployment.machine, deployment.database
    with shut_gate(deployment.ledger.url):
        task_id, _ = deployment.hold()
        for unit in (WEB, "rowlock-worker@*"):
            began = time.monotonic()
            machine.run("systemctl", "stop", unit, seconds=60)
            took = time.monotonic() - began
            print(f"{unit}: stopped within {took:.1f} s")
            assert took < GRACE_SECONDS + SLACK_SECONDS
        assert {machine.shown(unit, "Result") for unit in (WEB, *WORKERS)} == {"success"}
        assert machine.run("pgrep", "--uid", "rowlock", is_checked=False) == ""
        task = database.task(task_id)
        allowed = wait_at_the_gate.attempts_allowed()
        assert (task.status, database.outcomes(task_id), task.max_attempts) == ("READY", ["released"], allowed + 1)


def test_everything_starts_at_boot_and_waits_for_the_database(deployment):
    machine, database = deployment.machine, deployment.database
    database.close()
    deployment.server.stop()
    machine.power_off()
    machine.boot()
    refused = ("journalctl", "--boot", "--no-pager", "--unit=rowlock-worker@*", "--grep=Connection refused")
    wait_until(lambda: machine.run(*refused, is_checked=False))
    assert {machine.state(unit) for unit in (WEB, *WORKERS)} == {"active"}
    with deployment.neighbour.entered():
        deployment.server.start()
    began = time.monotonic()
    tasks = database.enqueue(handlers.work, count=20)
    wait_until(lambda: all_completed_once(deployment, tasks))
    print(f"tasks had run {time.monotonic() - began:.1f} s after the database was there")
    with deployment.neighbour.entered():
        wait_until(lambda: deployment.get("/readyz") == 200)
    assert {machine.state(f"{job}.timer") for job in JOBS} == {"active"}


def test_a_worker_is_restarted_until_the_migration_is_done(deployment):
    machine, [unit, _] = deployment.machine, WORKERS
    url = address_of(deployment.neighbour, new_database(deployment.server, "rowlock_next"))
    machine.run("systemctl", "stop", WEB, "rowlock-worker@*")
    edit(machine.root / "etc/rowlock.env", {"DATABASE_URL": url})
    machine.run("systemctl", "start", "--no-block", unit)
    wait_until(lambda: int(machine.shown(unit, "NRestarts")) >= 3, seconds=60)
    machine.run("systemctl", "start", "rowlock-migrate", seconds=120)
    wait_until(lambda: machine.state(unit) == "active")
    print(f"migrated and at work after {machine.shown(unit, 'NRestarts')} restarts")
