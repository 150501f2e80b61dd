"""What optimistic completion without a claim loses, shown on purpose."""

import pytest
from django.db import connection

from dashboard.lab.patterns import queue
from tasks.models import Task
from tests.tasks import rows

pytestmark = pytest.mark.django_db


def test_untouched_it_completes_in_order() -> None:
    late, urgent = rows.ready(), rows.ready(priority=1)
    read = queue.read_next(connection, "default")
    assert read == (urgent.pk, urgent.version)
    assert queue.complete_if_unchanged(connection, *read, return_value="7")
    urgent.refresh_from_db()
    assert (urgent.status, urgent.return_value) == ("COMPLETED", 7)
    assert queue.read_next(connection, "default") == (late.pk, late.version)


def test_two_that_read_the_same_row_both_work_and_one_result_is_lost() -> None:
    rows.ready()
    first, second = queue.read_next(connection, "default"), queue.read_next(connection, "default")
    assert first == second
    assert first
    assert second
    assert queue.complete_if_unchanged(connection, *first, return_value="1")
    assert not queue.complete_if_unchanged(connection, *second, return_value="2")
    assert Task.objects.get().return_value == 1


def test_a_harmless_write_from_outside_loses_the_result() -> None:
    """Raw SQL that knows nothing of versions; the trigger raises it."""
    task = rows.ready()
    read = queue.read_next(connection, "default")
    assert read
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tasks_task SET priority = 5 WHERE id = %s", [task.pk])
    assert not queue.complete_if_unchanged(connection, *read)
    assert Task.objects.get().status == "READY"


def test_an_empty_queue_gives_nothing() -> None:
    assert queue.read_next(connection, "default") is None
