"""The container deployment, started as docs/deploying.md says: a kill, restarts under load, `down` and `up`.

`make chaos ARGS="-m containers"`, where Docker and two public images can be had. It builds the image `rowlock`, and
serves on port 8000 of this machine.
"""

import contextlib
import http.client
import json
import os
import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from tests.databases import ROOT
from tests.waiting import wait_until

pytestmark = pytest.mark.containers

PROJECT = "rowlock-drill"  # in place of the file's name, so that its volume is not that of an installation
COMPOSE = "docker compose --file docs/deploy/compose.yaml "
PAGE = (ROOT / "docs" / "deploying.md").read_text()
WORKERS, PROCESSES = 2, 2
START_SECONDS = 900  # the first build downloads two images and all packages
RESTART_SECONDS = 60
LOAD, NAP_SECONDS = 400, 0.2
KILL = "import os, signal; os.kill(-1, signal.SIGKILL)"  # spares the container's init, as a crash does
HELD = """
SELECT worker.hostname, count(*) FROM tasks_task AS task JOIN tasks_worker AS worker ON worker.id = task.claimed_by
WHERE task.status = 'PROCESSING' GROUP BY worker.hostname
"""
UNFINISHED = "SELECT count(*) FROM tasks_task WHERE status <> 'COMPLETED'"
COMPLETED = "SELECT count(*) FROM tasks_task WHERE status = 'COMPLETED' AND attempt = {attempt}"


class Deployment:
    """The containers of the compose file, and the environment that its commands are given."""

    def __init__(self) -> None:
        # Not DATABASE_URL and its like, which the file would hand on to the containers.
        kept = {name: value for name, value in os.environ.items() if re.match("DOCKER_|HOME$|PATH$", name)}
        secrets = {"SECRET_KEY": uuid.uuid4().hex * 2, "POSTGRES_PASSWORD": uuid.uuid4().hex}
        self.environment = {**kept, **secrets, "COMPOSE_PROJECT_NAME": PROJECT}

    def run(self, words: list[str], seconds: float = RESTART_SECONDS) -> str:
        done = subprocess.run(words, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, f"{shlex.join(words)} exited with {done.returncode}: {done.stderr[-2000:]}"
        return done.stdout

    def say(self, line: str, seconds: float = RESTART_SECONDS) -> str:
        """Run a command that docs/deploying.md gives."""
        assert re.search(rf"^\$ {re.escape(line)}( +#.*)?$", PAGE, re.MULTILINE), f"docs/deploying.md lacks: {line}"
        return self.run(shlex.split(line), seconds)

    def compose(self, line: str) -> str:
        return self.run(shlex.split(COMPOSE + line))

    def enqueue_naps(self, seconds: float, count: int) -> None:
        command = f"enqueue_task dashboard.tasks.nap --queue default --args [{seconds}] --count {count}"
        self.compose(f"exec -T web python manage.py {command}")

    def rows(self, statement: str) -> list[list[str]]:
        psql = "exec -T database psql --username=rowlock --no-align --tuples-only --command"
        return [line.split("|") for line in self.compose(f"{psql} {shlex.quote(statement)}").splitlines()]

    def number(self, statement: str) -> int:
        return int(self.rows(statement)[0][0])

    def has_finished(self) -> bool:
        return self.number(UNFINISHED) == 0

    def state(self, container: str) -> tuple[bool, int]:
        """If it runs, and how often it was restarted."""
        (found,) = json.loads(self.run(["docker", "inspect", container]))
        return found["State"]["Running"], found["RestartCount"]


def status(path: str) -> int:
    """The status of a page; 0 while nobody answers."""
    web = http.client.HTTPConnection("127.0.0.1", 8000, timeout=5)
    with contextlib.closing(web), contextlib.suppress(OSError, http.client.HTTPException):
        web.request("GET", path)
        return web.getresponse().status
    return 0


def is_ready() -> bool:
    return status("/readyz") == 200


def require_engine() -> None:
    """Fails in words where no container can run."""
    debian = "install Docker Engine with Compose 2: on Debian 13 docker.io docker-cli docker-buildx docker-compose"
    assert shutil.which("docker"), f"No docker: {debian}."
    for words in (["docker", "info"], ["docker", "compose", "version"]):
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"`{shlex.join(words)}` fails: {debian}. {done.stdout[-300:]}{done.stderr[-300:]}"


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    require_engine()
    deployment = Deployment()
    deployment.compose("down --volumes --remove-orphans")  # a drill that was killed may have left them
    try:
        deployment.say(f"{COMPOSE}up --detach --build --scale worker={WORKERS}", START_SECONDS)
        wait_until(is_ready, seconds=RESTART_SECONDS)
        yield deployment
    finally:
        deployment.compose("down --volumes --remove-orphans")


@pytest.fixture
def idle(deployment: Deployment) -> Deployment:
    """The deployment without tasks, and all its workers at work."""

    def all_work() -> bool:
        alive = "SELECT count(*) FROM tasks_worker WHERE stopped_at IS NULL AND presence_epoch IS NOT NULL"
        return deployment.number(alive) == WORKERS * PROCESSES

    wait_until(all_work, seconds=RESTART_SECONDS, every=0.5)
    deployment.rows("DELETE FROM tasks_task")
    return deployment


def test_the_pages_answer_and_a_job_of_the_cron_runs(idle: Deployment) -> None:
    assert [status(path) for path in ("/healthz", "/readyz", "/admin/login/")] == [200, 200, 200]
    assert "0 orders found" in idle.say(f"{COMPOSE}run --rm ship-emails")


def test_a_killed_worker_is_restarted_and_its_tasks_run_again(idle: Deployment) -> None:
    idle.enqueue_naps(3, 5 * WORKERS * PROCESSES)  # they go on for 15 s, so that a slow machine meets them too

    def one_of_workers_that_all_run_tasks() -> str | None:
        held = idle.rows(HELD)
        return held[0][0] if [int(count) for _, count in held] == [PROCESSES] * WORKERS else None

    victim = wait_until(one_of_workers_that_all_run_tasks, seconds=RESTART_SECONDS)
    _, restarts = idle.state(victim)

    def victim_is_restarted() -> bool:
        return idle.state(victim) == (True, restarts + 1)

    subprocess.run(["docker", "exec", victim, "python", "-c", KILL], timeout=RESTART_SECONDS)  # ends with the container
    wait_until(victim_is_restarted, seconds=RESTART_SECONDS, every=0.2)
    wait_until(idle.has_finished, seconds=RESTART_SECONDS, every=0.2)
    assert idle.number(COMPLETED.format(attempt=2)) == PROCESSES
    idle.run(["docker", "exec", victim, "touch", "/tmp/drill", "var/mail/drill"])


def test_restarts_under_load_cost_no_task_and_no_attempt(idle: Deployment) -> None:
    """Workers finish the tasks that they run, so nothing is recovered later."""
    idle.enqueue_naps(NAP_SECONDS, LOAD)
    idle.compose("restart worker")
    idle.compose("restart web")
    idle.compose("stop worker")
    assert not idle.has_finished(), "the load ended too soon"
    assert idle.rows(HELD) == []
    idle.compose("start worker")
    wait_until(idle.has_finished, seconds=3 * RESTART_SECONDS, every=0.2)
    wait_until(is_ready, seconds=RESTART_SECONDS)
    assert idle.number(COMPLETED.format(attempt=1)) == LOAD


def test_the_volume_keeps_everything_from_down_to_up(idle: Deployment) -> None:
    idle.compose("stop worker")
    idle.enqueue_naps(NAP_SECONDS, 20)
    idle.compose("down")
    idle.say(f"{COMPOSE}up --detach --build --scale worker={WORKERS}", START_SECONDS)
    wait_until(is_ready, seconds=RESTART_SECONDS)
    wait_until(idle.has_finished, seconds=RESTART_SECONDS, every=0.2)
    assert idle.number(COMPLETED.format(attempt=1)) == 20
