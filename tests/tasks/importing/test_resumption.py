"""An import that is killed and started again: no row is lost and none is doubled, whatever has run meanwhile."""

import subprocess
from collections import Counter
from collections.abc import Iterator

import pytest
from django.db import connection

from tasks.models import Intervention, Task
from tests.commands import start
from tests.processes import HANDLERS_APP
from tests.sessions import session
from tests.tasks.importing.packages import SEARCH_PATH, filled
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
PATIENT = "-c idle_in_transaction_session_timeout=0"
HELD = "INSERT INTO tasks_task (task_path, unique_key, unique_while) VALUES ('held.task', %s, 'a')"
WAITS = """
SELECT EXISTS (SELECT FROM pg_stat_activity
    WHERE application_name = 'rowlock:cmd:import_tasks' AND %s = ANY(pg_blocking_pids(pid)))
"""
# As workers and prune_tasks would leave them.
RUN = "UPDATE tasks_task SET status = 'COMPLETED', attempt = 1, finished_at = clock_timestamp()"
TURN = "SELECT pg_advisory_xact_lock(hashtext('rowlock:import:' || current_schema()), hashtext('procrastinate'))"


@pytest.fixture
def volume(transactional_db: None, request: pytest.FixtureRequest) -> Iterator[int]:
    with filled(f"volume={request.param}"):
        yield request.param


def importing() -> "subprocess.Popen[str]":
    variables = {"PGOPTIONS": f"{SEARCH_PATH} -c lock_timeout=60s", "ROWLOCK_APPS": HANDLERS_APP}
    return start("import_tasks", "--from", "procrastinate", "--yes", "--json", env=variables)


def waits_for(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(WAITS, [pid])
        return bool(cursor.fetchone()[0])


def key(place: int) -> str:
    """The unique key of the task that is imported from the job at this place, by its id."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM theirs.procrastinate_jobs ORDER BY id OFFSET %s LIMIT 1", [place])
        return f"import:procrastinate:{cursor.fetchone()[0]}"


def take_away() -> list[str]:
    """Let every task run and be pruned; returns their unique keys."""
    keys = list(Task.objects.values_list("unique_key", flat=True))
    with connection.cursor() as cursor:
        cursor.execute(RUN)
    Task.objects.all().delete()
    return keys


def marks() -> int:
    return Intervention.objects.filter(action="enqueue", target__startswith="import:procrastinate:").count()


@pytest.mark.parametrize("volume", [20_000], indirect=True)
def test_killed_twice_and_resumed_by_two_at_once(volume):
    seen: Counter[str] = Counter()
    for place in (3500, 12_500):
        with session(options=PATIENT) as other:
            other.execute(HELD, [key(place)])
            with importing() as process:
                try:
                    wait_until(lambda: waits_for(other.info.backend_pid), seconds=60)
                finally:
                    process.kill()
            assert process.returncode == -9
        before = seen.total()
        seen.update(take_away())
        assert before < seen.total() <= place, "whole chunks are kept, and nothing of the one that was killed"
    with importing() as one, importing() as other:
        out = [process.communicate(timeout=120) for process in (one, other)]
    assert (one.returncode, other.returncode) == (0, 0), out
    seen.update(take_away())
    assert (len(seen), seen.total(), marks()) == (volume, volume, volume)


@pytest.mark.parametrize("volume", [20], indirect=True)
def test_two_imports_take_turns(volume):
    mark = key(10)
    with session(options=PATIENT) as other:
        other.execute(TURN)
        with importing() as process:
            wait_until(lambda: waits_for(other.info.backend_pid), seconds=60)
            other.execute(
                "INSERT INTO tasks_intervention (actor, source, action, target) VALUES ('x', 'command', 'enqueue', %s)",
                [mark],
            )
            other.commit()
            process.communicate(timeout=120)
    assert (process.returncode, Task.objects.count()) == (0, volume - 1)
    assert not Task.objects.filter(unique_key=mark).exists()


@pytest.mark.chaos
def test_a_million_rows_killed_five_times_while_workers_run_them(transactional_db):
    rows = 1_000_000
    with (
        filled(f"volume={rows}"),
        start("run_worker", "-v0", env={"ROWLOCK_APPS": HANDLERS_APP, "DIRECT_DATABASE_URL": ""}) as worker,
    ):
        try:
            for kept in range(150_000, 900_000, 150_000):
                with importing() as process:
                    wait_until(lambda kept=kept: marks() >= kept, seconds=900, every=0.2)
                    process.kill()
            with importing() as process:
                process.communicate(timeout=1800)
            wait_until(lambda: not Task.objects.unfinished().exists(), seconds=900, every=1)
        finally:
            worker.terminate()
    assert process.returncode == 0
    keys = Task.objects.values("unique_key").distinct().count()
    assert (Task.objects.completed().count(), keys, marks()) == (rows, rows, rows)
