"""An import that is killed and started again: no row is lost and none is doubled, whatever has run meanwhile."""

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from tasks.models import Intervention, Task
from tests.commands import start
from tests.processes import HANDLERS_APP
from tests.sessions import session
from tests.tasks.importing.packages import SEARCH_PATH, filled
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
ROWS = 20_000
PATIENT = "-c idle_in_transaction_session_timeout=0"
HELD = "INSERT INTO tasks_task (task_path, unique_key, unique_while) VALUES ('held.task', %s, 'a')"
HOLD_MARKS = "LOCK TABLE tasks_intervention IN SHARE MODE"
WAITS = """
SELECT EXISTS (SELECT FROM pg_stat_activity
    WHERE application_name = 'rowlock:cmd:import_tasks' AND %s = ANY(pg_blocking_pids(pid)))
"""
# As workers and prune_tasks would leave them.
RUN = "UPDATE tasks_task SET status = 'COMPLETED', attempt = 1, finished_at = clock_timestamp()"
MARK = "INSERT INTO tasks_intervention (actor, source, action, target) VALUES ('x', 'command', 'enqueue', %s)"
TURN = "SELECT pg_advisory_xact_lock(hashtext('rowlock:import:' || current_schema()), hashtext('django-tasks-db'))"


@pytest.fixture(scope="module")
def theirs(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), filled(f"volume={ROWS}", "django_tasks_db"):
        yield


def importing(source: str = "procrastinate", *options: object) -> "subprocess.Popen[str]":
    variables = {"PGOPTIONS": f"{SEARCH_PATH} -c lock_timeout=60s", "ROWLOCK_APPS": HANDLERS_APP}
    return start("import_tasks", "--from", source, "--yes", "--json", *options, env=variables)


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


def test_killed_twice_and_resumed(theirs):
    seen: Counter[str] = Counter()
    # In the middle of a chunk's rows; then after the rows of the next chunk, and before their marks.
    for statement, params in ((HELD, [key(12_500)]), (HOLD_MARKS, [])):
        with session(options=PATIENT) as other:
            other.execute(statement, params)
            with importing() as process:
                try:
                    wait_until(lambda: waits_for(other.info.backend_pid), seconds=60)
                finally:
                    process.kill()
            assert process.returncode == -9
        seen.update(take_away())
        assert seen.total() == 12_000, "whole chunks are kept, and nothing of the one that was killed"
    with importing() as process:
        out = process.communicate(timeout=120)
    assert process.returncode == 0, out
    seen.update(take_away())
    assert (len(seen), seen.total(), marks()) == (ROWS, ROWS, ROWS)


def test_two_imports_take_turns(theirs):
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM theirs.django_tasks_database_dbtaskresult WHERE status = 'READY' LIMIT 1")
        mark = f"import:django-tasks-db:{cursor.fetchone()[0]}"
    with session(options=PATIENT) as other:
        other.execute(TURN)
        with importing("django-tasks-db", "--map", f"shop.send={HANDLERS_APP}.tasks.vary") as process:
            wait_until(lambda: waits_for(other.info.backend_pid), seconds=60)
            other.execute(MARK, [mark])
            other.commit()
            out, err = process.communicate(timeout=120)
    report = json.loads(out)
    assert (report["already"], report["imported"]) == (1, Task.objects.count()), err
    assert not Task.objects.filter(unique_key=mark).exists()


@pytest.mark.chaos
def test_a_million_rows_killed_three_times_while_workers_run_them(transactional_db):
    rows = 1_000_000
    with (
        filled(f"volume={rows}"),
        start("run_worker", "-v0", env={"ROWLOCK_APPS": HANDLERS_APP, "DIRECT_DATABASE_URL": ""}) as worker,
    ):
        try:
            for kept in range(250_000, 900_000, 250_000):
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
