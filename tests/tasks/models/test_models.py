"""The invariants of the tables: the database refuses what no transition may write, whoever asks."""

from datetime import UTC, datetime

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from tasks.models import Attempt, Epoch, Intervention, Queue, Task
from tests.tasks import rows

pytestmark = pytest.mark.django_db
OVER = datetime(2026, 1, 2, tzinfo=UTC)  # fixed, or each process of the tests would name them otherwise
PROCESSING = {"status": "PROCESSING", "claimed_by": "w1", "attempt": 1}


@pytest.mark.parametrize(
    ("columns", "constraint"),
    [
        ({"status": "DONE"}, "status_known"),
        ({"status": "PROCESSING"}, "claimed_iff_processing"),
        ({"claimed_by": "w1"}, "claimed_iff_processing"),
        ({"status": "COMPLETED", "finished_at": OVER, "claimed_by": "w1"}, "claimed_iff_processing"),
        ({"status": "COMPLETED"}, "finished_at_iff_finished"),
        ({"status": "FAILED"}, "finished_at_iff_finished"),
        ({"status": "CANCELLED"}, "finished_at_iff_finished"),
        ({"finished_at": OVER}, "finished_at_iff_finished"),
        (PROCESSING | {"finished_at": OVER}, "finished_at_iff_finished"),
        ({"attempt": 3, "max_attempts": 3}, "ready_has_attempts"),
        (PROCESSING | {"attempt": 4, "max_attempts": 3}, "attempts_in_range"),
        ({"attempt": -1}, "attempts_in_range"),
        (PROCESSING | {"attempt": 0, "max_attempts": 0}, "attempts_in_range"),
        ({"priority": 101}, "priority_in_range"),
        ({"priority": -101}, "priority_in_range"),
        ({"task_path": ""}, "names_not_empty"),
        ({"queue_name": ""}, "names_not_empty"),
        ({"ordering_key": ""}, "names_not_empty"),
        ({"args": {}}, "argument_shapes"),
        ({"kwargs": []}, "argument_shapes"),
    ],
    ids=str,
)
def test_what_a_task_may_not_be(columns, constraint):
    with pytest.raises(IntegrityError, match=f"tasks_task_{constraint}"):
        rows.create(**columns)


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"priority": 100, "attempt": 2, "max_attempts": 3},
        {"priority": -100, "max_attempts": 1},
        PROCESSING | {"attempt": 3, "max_attempts": 3},
        {"status": "COMPLETED", "attempt": 3, "max_attempts": 3, "finished_at": OVER},
        {"status": "CANCELLED", "finished_at": OVER},
    ],
    ids=str,
)
def test_what_it_may_be(columns):
    assert rows.create(**columns).pk


def test_other_programs_need_to_name_the_function_only():
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO tasks_task (task_path) VALUES ('a.b')")
    task = Task.objects.get()
    assert (task.status, task.version, task.queue_name, task.priority) == ("READY", 1, "default", 0)
    assert (task.args, task.kwargs, task.attempt, task.max_attempts) == ([], {}, 0, 5)
    assert task.created_at == task.run_after


def test_created_at_is_the_clock_of_the_statement_and_not_of_the_transaction():
    """`now()` stands still in a transaction: a task enqueued late in a long one would overtake others."""
    first, second = rows.ready(), rows.ready()
    assert first.created_at < second.created_at
    assert first.run_after < second.run_after


def test_attempts_go_with_their_task_whoever_deletes_it():
    task = rows.failed()
    Attempt.objects.create(task=task, number=1, worker_id="w1", outcome="failed")
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM tasks_task")
    assert not Attempt.objects.exists()


def test_a_queue_recovers_by_itself_or_asks():
    with pytest.raises(IntegrityError, match="recovery_known"):
        Queue.objects.create(name="q", recovery="sometimes")


def test_there_is_one_epoch():
    with pytest.raises(IntegrityError, match="one_row"):
        Epoch.objects.create(id=2, token="x", first_seen_at=OVER)


@pytest.mark.parametrize("change", ["UPDATE tasks_intervention SET actor = 'nobody'", "DELETE FROM tasks_intervention"])
def test_the_audit_can_only_grow(change):
    Intervention.objects.create(actor="anna", source="page", action="requeue", target="task:1")
    with (
        pytest.raises(DatabaseError, match=r"append-only: .* tasks_intervention refused"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(change)
    assert Intervention.objects.get().actor == "anna"
