"""`archive_tasks` moves each old finished task to the archive once, whole, and drops months of it."""

import os
import signal
import threading
from contextlib import closing
from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tasks import operations
from tasks.locking import lock
from tasks.models import ArchivedTask, Attempt, AttemptLog, Intervention, Progress, Task
from tasks.operations import archive
from tasks.support.audit import Who
from tests.commands import run, start
from tests.sessions import session
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db
OLD = timezone.now() - timedelta(days=8)
LONG_AGO = {"created_at": OLD, "finished_at": OLD}
ANNA = Who("anna", "command")
COLUMNS = "SELECT attname, atttypid FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
ARCHIVERS = "SELECT pid FROM pg_stat_activity WHERE starts_with(application_name, 'rowlock:cmd:archive_tasks')"
WAITING = f"{ARCHIVERS} AND cardinality(pg_blocking_pids(pid)) > 0"
PARTITIONS = (
    "SELECT relname FROM pg_class JOIN pg_inherits ON inhrelid = oid WHERE inhparent = 'tasks_archive'::regclass"
)


def move(**options):
    return archive.archive_tasks(timedelta(days=7), ANNA, **options)


def fetched(statement, params=()):
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall()


class TestMoving:
    def test_old_finished_tasks_move_and_everything_else_stays(self):
        old = [state(**LONG_AGO) for state in (rows.completed, rows.failed, rows.cancelled)]
        kept = [
            rows.completed(created_at=OLD),
            rows.ready(created_at=OLD, run_after=OLD),
            rows.processing("w", created_at=OLD, started_at=OLD),
        ]
        assert move() == 3
        assert list(Task.objects.order_by("pk")) == kept
        assert [row.as_task() for row in ArchivedTask.objects.order_by("pk")] == old

    def test_a_month_is_frozen_as_it_fills(self):
        """Else VACUUM would freeze a hundred million rows at once, before transaction ids wrap around."""
        rows.completed(**LONG_AGO)
        move()
        [(options,)] = fetched(PARTITIONS.replace("relname", "reloptions"))
        assert "autovacuum_freeze_min_age=0" in options

    def test_a_row_keeps_every_column(self):
        task = rows.failed(
            **LONG_AGO, priority=7, args=[1], kwargs={"rowlock:encrypted": "gAAA"}, ordering_key="k", unique_key="u",
            unique_while="a", traceparent=f"00-{'a' * 32}-{'b' * 16}-01", started_at=OLD, cancel_requested_at=OLD,
        )  # fmt: skip
        move()
        names = [field.attname for field in Task._meta.concrete_fields]
        [archived] = ArchivedTask.objects.all()
        assert {name: getattr(archived, name) for name in names} == {name: getattr(task, name) for name in names}

    def test_the_archive_has_every_column_of_a_task(self):
        """The statement names them: a new column of tasks goes there and into the archive too."""
        own = set(fetched(COLUMNS, ["tasks_task"]))
        assert own <= set(fetched(COLUMNS, ["tasks_archive"]))
        assert all(name in archive.ARCHIVE for name, _ in own)

    def test_attempts_and_lines_move_along_and_reports_go(self):
        task = rows.failed(**LONG_AGO)
        attempts = [
            Attempt.objects.create(task=task, number=number, worker_id="w", outcome="failed", finished_at=OLD)
            for number in (1, 2)
        ]
        lines = [AttemptLog.objects.create(task_id=task.pk, number=1, at=OLD, level="INFO", message=m) for m in "ab"]
        Progress.objects.create(task_id=task.pk, attempt=1, fraction=0.5)
        move()
        archived = ArchivedTask.find(task.pk)
        assert [vars(one) | {"_state": 0} for one in archived.attempts(10)] == [
            vars(one) | {"_state": 0} for one in reversed([Attempt(**columns(one)) for one in attempts])
        ]
        assert archived.attempts(1) == attempts[1:]
        assert (archived.lines(10), archived.lines(1)) == (lines, lines[1:])
        assert [model.objects.count() for model in (Attempt, AttemptLog, Progress)] == [0, 0, 0]

    def test_each_month_has_a_partition_that_is_made_when_needed(self):
        for at in (datetime(2025, 12, 31, 23, 59, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)):
            rows.completed(created_at=at, finished_at=at)
        move()
        found = fetched("SELECT tableoid::regclass::text, finished_at FROM tasks_archive ORDER BY finished_at")
        assert [name for name, _ in found] == ["tasks_archive_202512", "tasks_archive_202601"]

    def test_a_status_narrows_it(self):
        rows.completed(**LONG_AGO)
        failed = rows.failed(**LONG_AGO)
        assert move(statuses=["COMPLETED"]) == 1
        assert Task.objects.get() == failed
        with pytest.raises(ValueError, match="READY are not finished"):
            move(statuses=["READY"])

    def test_it_walks_all_windows_and_stops_at_the_first_young_one(self, monkeypatch, django_assert_max_num_queries):
        monkeypatch.setattr(archive, "WINDOW", 10)
        rows.many(35, status="COMPLETED", attempt=1, **LONG_AGO)
        rows.many(100, status="COMPLETED", attempt=1, finished_at=timezone.now())
        with django_assert_max_num_queries(30):
            assert move() == 35

    def test_it_stops_between_windows_when_told(self, monkeypatch):
        monkeypatch.setattr(archive, "WINDOW", 2)
        rows.many(5, status="COMPLETED", attempt=1, **LONG_AGO)
        assert move(progress=lambda done, total: False) == 2
        assert (Task.objects.count(), ArchivedTask.objects.count()) == (3, 2)

    def test_one_intervention_tells_of_it(self):
        move()
        assert not Intervention.objects.exists()
        rows.many(2, status="COMPLETED", attempt=1, **LONG_AGO)
        move(reason="disk")
        entry = Intervention.objects.get()
        assert entry.action == "archive older_than=1w status=COMPLETED,FAILED,CANCELLED"
        assert (entry.target, entry.reason) == ("table:tasks_task", "disk")

    def test_a_dry_run_counts_and_moves_nothing(self, monkeypatch):
        monkeypatch.setattr(archive, "WINDOW", 2)
        rows.many(5, status="COMPLETED", attempt=1, **LONG_AGO)
        before = fetched(PARTITIONS)
        assert move(dry_run=True) == 5
        assert (Task.objects.count(), ArchivedTask.objects.count(), Intervention.objects.count()) == (5, 0, 0)
        assert fetched(PARTITIONS) == before


def in_a_thread(work):
    """The results that it will have, and the thread."""
    results = []

    def run_it():
        with closing(connection):
            results.append(work())

    thread = threading.Thread(target=run_it)
    thread.start()
    return results, thread


def columns(row):
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


class TestDropping:
    def test_months_before_it_go_and_the_others_stay(self):
        for month in (10, 11, 12):
            at = datetime(2025, month, 5, tzinfo=UTC)
            rows.completed(created_at=at, finished_at=at)
        move()
        assert archive.drop_months(date(2025, 12, 1), ANNA, dry_run=True) == ["2025-10", "2025-11"]
        assert ArchivedTask.objects.count() == 3
        assert archive.drop_months(date(2025, 12, 1), ANNA, reason="law") == ["2025-10", "2025-11"]
        assert ArchivedTask.objects.get().finished_at.month == 12
        entries = Intervention.objects.filter(action="drop").order_by("pk")
        assert list(entries.values_list("target", "reason")) == [
            ("table:tasks_archive_202510", "law"), ("table:tasks_archive_202511", "law"),
        ]  # fmt: skip
        assert archive.drop_months(date(2025, 12, 1), ANNA) == []


@pytest.mark.django_db(transaction=True)
class TestBesideOthers:
    def test_the_command_says_what_it_did_and_that_another_runs(self):
        rows.completed(**LONG_AGO)
        with lock(archive.LOCK, ttl=30):
            refused = run("archive_tasks", "--older-than", "7d")
        assert (refused.status, archive.LOCK in refused.stderr, Task.objects.count()) == (75, True, 1)
        outcome = run("archive_tasks", "--json", "--older-than", "7d", "--drop-before", "2000-01")
        assert (outcome.status, outcome.data) == (0, {"archived": 1, "dropped": []})

    def test_a_locked_row_is_left_and_not_waited_for(self):
        held = rows.completed(**LONG_AGO)
        rows.completed(**LONG_AGO)
        with session() as other:
            other.execute("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", [held.pk])
            assert move() == 1
        assert Task.objects.get() == held

    def test_a_task_that_is_run_again_meanwhile_stays(self, monkeypatch):
        """Between its snapshot and the lock of the row; the snapshot lacks what happened since."""
        task = rows.failed(**LONG_AGO)
        monkeypatch.setattr(
            archive,
            "ARCHIVE",
            archive.ARCHIVE.replace("WHERE id >", "WHERE pg_advisory_xact_lock(25) IS NOT NULL AND id >"),
        )
        with session(autocommit=True) as other:
            other.execute("SELECT pg_advisory_lock(25)")
            moved, thread = in_a_thread(move)
            wait_until(lambda: fetched("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
            operations.requeue([task.pk], ANNA)
            other.execute("UPDATE tasks_task SET status = 'FAILED', finished_at = %s WHERE id = %s", [OLD, task.pk])
            other.execute("SELECT pg_advisory_unlock(25)")
            thread.join()
        assert (moved, Task.objects.get(), ArchivedTask.objects.exists()) == ([0], task, False)

    def test_of_requeue_and_archive_one_gets_the_task(self):
        for _ in range(5):
            tasks = rows.many(40, status="FAILED", attempt=1, **LONG_AGO)
            _, thread = in_a_thread(move)
            done = operations.requeue(tasks, ANNA).done
            thread.join()
            archived = set(ArchivedTask.objects.filter(pk__in=tasks).values_list("pk", flat=True))
            ready = set(Task.objects.filter(pk__in=tasks, status="READY").values_list("pk", flat=True))
            left = set(Task.objects.filter(pk__in=tasks, status="FAILED").values_list("pk", flat=True))
            assert set(done) == ready
            assert sorted([*archived, *ready, *left]) == sorted(tasks)

    def test_two_archivers_at_once_move_each_row_once(self):
        tasks = rows.many(300, status="COMPLETED", attempt=1, **LONG_AGO)
        move(dry_run=True)
        for _, thread in [in_a_thread(move) for _ in range(3)]:
            thread.join()
        assert ids(ArchivedTask) == tasks

    def test_a_killed_archiver_loses_and_doubles_nothing(self):
        """Killed in its second window, in the middle of the statement: some rows are deleted, none is written."""
        first = rows.many(archive.WINDOW, status="COMPLETED", attempt=1, **LONG_AGO)
        other_month = OLD - timedelta(days=31)
        second = rows.many(10, status="COMPLETED", attempt=1, created_at=OLD, finished_at=other_month)
        fetched("SELECT rowlock_make_archive(%s)", [other_month.date()])
        with session() as other:
            other.execute(f"LOCK TABLE tasks_archive_{other_month:%Y%m} IN SHARE MODE")
            with start("archive_tasks", "--older-than", "7d") as process:
                wait_until(lambda: fetched(WAITING))
                os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not fetched(ARCHIVERS))
        assert ids(ArchivedTask) == first
        assert ids(Task) == second
        wait_until(lambda: run("archive_tasks", "--older-than", "7d").status == 0)  # the dead one's lock is soon free
        assert ids(ArchivedTask) == [*first, *second]


def ids(model):
    return list(model.objects.order_by("pk").values_list("pk", flat=True))
