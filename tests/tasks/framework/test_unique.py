"""Unique tasks: a second enqueue gives back the first one's id, whichever door it comes through."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from tasks import exceptions, testing
from tasks.compat import TaskResultStatus, task_enqueued
from tasks.framework import keyed
from tasks.framework.declaration import PostgresTask
from tasks.models import Intervention, Task
from tests.commands import run
from tests.sessions import session
from tests.tasks import handlers, rows

pytestmark = pytest.mark.django_db
WHILE = {"queued": "q", "active": "a"}
INSERT = "INSERT INTO tasks_task (task_path, unique_key, unique_while) VALUES ('any.task', 'k', %s)"
SQL = "SELECT rowlock_enqueue('any.task', %s::jsonb, unique_key => 'k', unique_while => %s, on_duplicate => %s, {})"


def by_python(task: PostgresTask, value: int) -> int:
    return int(task.enqueue(value).id)


def by_batch(task: PostgresTask, value: int) -> int:
    [id] = task.enqueue_many([((value,), {})])
    return id


def by_sql(task: PostgresTask, value: int) -> int:
    with connection.cursor() as cursor:
        priority = f"priority => {task.priority}"
        cursor.execute(SQL.format(priority), [f"[{value}]", task.unique_while, task.on_duplicate])
        return cursor.fetchone()[0]


def by_command(task: PostgresTask, value: int) -> int:
    options = ("--unique-key", "k", "--unique-while", task.unique_while, "--on-duplicate", task.on_duplicate)
    options = (*options, "--priority", task.priority, "--args", f"[{value}]")
    return run("enqueue_task", "--json", task.module_path, *options).data["ids"][0]


DOORS = [by_python, by_batch, by_sql, by_command]


def echo(**options: Any) -> PostgresTask:
    return handlers.echo.using(unique_key="k", **options)


@pytest.mark.parametrize("second", DOORS)
@pytest.mark.parametrize("first", DOORS)
def test_a_second_enqueue_gives_back_the_first_one_s_id(first, second):
    id = first(echo(), 1)
    assert second(echo(priority=5), 2) == id
    row = Task.objects.get()
    assert (row.args, row.priority, row.version) == ([1], 0, 1)


@pytest.mark.parametrize("door", DOORS)
def test_replace_gives_the_waiting_task_the_new_arguments_time_and_priority(door):
    before = rows.ready(unique_key="k", unique_while="a", args=[1], run_after=timezone.now() + timedelta(days=1))
    assert door(echo(on_duplicate="replace", priority=5), 2) == before.pk
    row = Task.objects.get()
    assert (row.args, row.kwargs, row.priority, row.version) == ([2], {}, 5, before.version + 1)
    assert row.run_after <= timezone.now()
    assert row.created_at == before.created_at


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("on_duplicate", ["keep", "replace"])
def test_a_running_task_is_given_back_unchanged(door, on_duplicate):
    before = rows.processing("w1", unique_key="k", unique_while="a", args=[1])
    assert door(echo(on_duplicate=on_duplicate), 2) == before.pk
    row = Task.objects.get()
    assert (row.args, row.version, row.status) == ([1], before.version, "PROCESSING")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("on_duplicate", ["keep", "replace"])
def test_a_key_that_is_unique_while_queued_is_free_while_its_task_runs(door, on_duplicate):
    before = rows.processing("w1", unique_key="k", unique_while="q", args=[1])
    task = echo(on_duplicate=on_duplicate, unique_while="queued")
    id = door(task, 2)
    assert id != before.pk
    assert door(task, 3) == id
    assert Task.objects.get(pk=id).args == ([3] if on_duplicate == "replace" else [2])


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("state", [rows.completed, rows.failed, rows.cancelled])
def test_a_finished_task_has_left_its_key(door, state):
    before = state(unique_key="k", unique_while="a")
    assert door(echo(), 2) != before.pk


@pytest.mark.parametrize("door", DOORS)
def test_replace_leaves_a_task_that_has_saved_its_state(door):
    """The state belongs to the arguments with which it was saved."""
    before = rows.ready(unique_key="k", unique_while="a", args=[1], attempt=1)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO tasks_progress (task_id, attempt, state) VALUES (%s, 1, '5')", [before.pk])
    assert door(echo(on_duplicate="replace"), 2) == before.pk
    assert Task.objects.get().args == [1]


@pytest.mark.parametrize("letter", ["a", "q"])
def test_raw_sql_cannot_double_a_key(letter):
    echo(unique_while="queued").enqueue(1)
    with pytest.raises(IntegrityError) as refusal, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(INSERT, [letter])
    assert refusal.value.__cause__.diag.constraint_name == "tasks_task_one_per_unique_key"


def test_one_key_means_the_same_to_all_functions_and_kinds():
    first = echo(unique_while="queued").enqueue(1)
    assert handlers.add.using(unique_key="k").enqueue(1, 2).id == first.id
    Task.objects.update(status="PROCESSING", claimed_by="w1", attempt=1)
    second = handlers.add.using(unique_key="k").enqueue(1, 2)
    assert second.id != first.id
    assert echo(unique_while="queued").enqueue(3).id == second.id


class TestManyAtOnce:
    def test_duplicates_within_a_batch_have_one_id(self):
        ids = handlers.index.enqueue_many([(("b", 1), {}), (("a", 2), {}), (("b", 3), {}), ((None, 4), {})])
        assert (ids[0], ids.duplicates, ids.replaced) == (ids[2], 1, 0)
        assert ids[0] < ids[1] < ids[3]
        assert [row.args for row in Task.objects.order_by("id")] == [["b", 1], ["a", 2], [None, 4]]

    def test_in_a_batch_that_replaces_the_last_one_counts(self):
        old = rows.ready(unique_key="old", unique_while="a", args=["old", 0])
        calls = [(("b", 1), {}), (("old", 2), {}), (("b", 3), {}), (("old", 4), {})]
        ids = handlers.index_latest.enqueue_many(calls)
        assert list(ids) == [ids[0], old.pk, ids[0], old.pk]
        assert (ids.duplicates, ids.replaced) == (3, 1)
        assert {tuple(row.args) for row in Task.objects.all()} == {("b", 3), ("old", 4)}

    def test_only_new_tasks_are_announced(self):
        seen = []
        rows.ready(unique_key="old", unique_while="a")

        def receive(task_result, **kwargs):
            seen.append(task_result.args)

        task_enqueued.connect(receive)
        try:
            handlers.index.enqueue_many([(("old",), {}), (("b", 1), {}), (("b", 2), {})])
            handlers.index.enqueue("old")
        finally:
            task_enqueued.disconnect(receive)
        assert seen == [["b", 1]]

    def test_chunks_share_their_keys(self, monkeypatch):
        monkeypatch.setattr("tasks.framework.enqueue.CHUNK_ROWS", 3)
        ids = handlers.index.enqueue_many(((f"key {number % 5}",), {}) for number in range(20))
        assert list(ids) == list(ids[:5]) * 4
        assert (ids.duplicates, Task.objects.count()) == (15, 5)

    def test_of_equal_commands_one_is_enqueued(self):
        answer = run("enqueue_task", "--json", handlers.echo.module_path, "--unique-key", "k", "--count", 5).data
        [id] = Task.objects.values_list("id", flat=True)
        assert answer == {"ids": [id], "count": 1, "duplicates": 4}
        assert Intervention.objects.get().action == "enqueue"


class TestAnswers:
    def test_the_result_is_that_of_the_task_that_has_the_key(self):
        with transaction.atomic():
            first = echo().enqueue("first")
            second = echo().enqueue("second")
        assert (second.id, second.args, second.enqueued_at) == (first.id, ["first"], first.enqueued_at)
        Task.objects.update(status="PROCESSING", claimed_by="w1", attempt=1, started_at=timezone.now())
        assert echo().enqueue("third").status == TaskResultStatus.RUNNING

    def test_the_holder_s_function_may_be_unknown_here(self):
        other = rows.ready(task_path="other.project", unique_key="k", unique_while="a")
        result = echo().enqueue(1)
        assert (result.id, result.enqueued_at) == (str(other.pk), other.created_at)

    def test_a_command_that_changes_nothing_leaves_no_line(self):
        holder = rows.ready(unique_key="k", unique_while="a")
        answer = run("enqueue_task", handlers.echo.module_path, "--unique-key", "k")
        assert f"0 tasks enqueued. Task #{holder.pk} has their unique key and stays as it is." in answer.stdout
        assert not Intervention.objects.exists()

    def test_a_command_that_replaces_says_so(self):
        holder = rows.ready(unique_key="k", unique_while="a")
        words = ("--unique-key", "k", "--on-duplicate", "replace", "--reason", "new price")
        answer = run("enqueue_task", "--json", handlers.echo.module_path, *words)
        assert answer.data == {"ids": [holder.pk], "count": 0, "duplicates": 1}
        entry = Intervention.objects.get()
        assert (entry.action, entry.target, entry.reason) == ("replace", f"task:{holder.pk}", "new price")

    def test_what_was_replaced_runs_with_the_new_arguments(self):
        handlers.index_latest.enqueue("page", 1)
        handlers.index_latest.enqueue("page", 2)
        assert [result.args for result in testing.run_due()] == [["page", 2]]
        assert handlers.index_latest.enqueue("page", 3).status == TaskResultStatus.READY


@pytest.mark.django_db(transaction=True)
class TestTwoTransactions:
    def test_the_second_waits_no_longer_than_its_lock_timeout_and_says_for_what(self):
        with session() as first, transaction.atomic(), connection.cursor() as cursor:
            first.execute(INSERT, ["a"])
            cursor.execute("SET LOCAL lock_timeout = '50ms'")
            with pytest.raises(exceptions.KeyBusy) as refusal:
                echo().enqueue(1)
            transaction.set_rollback(True)
        assert str(refusal.value).startswith("The unique key 'k' is held up by another transaction")
        assert "Enqueue again, or raise lock_timeout" in str(refusal.value)

    def test_so_does_the_function(self):
        with session() as first, session(autocommit=True) as second:
            first.execute(INSERT, ["a"])
            second.execute("SET lock_timeout = '50ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable) as refusal:
                second.execute(SQL.format("priority => 1"), ["[1]", "active", "keep"])
        assert "unique_key 'k' is held up by another transaction" in refusal.value.diag.message_primary
        assert "(50ms)" in refusal.value.diag.message_primary
        assert "show_locks --blocked" in refusal.value.diag.message_hint

    def test_a_locked_row_that_is_kept_holds_nobody_up(self):
        holder = rows.ready(unique_key="k", unique_while="a")
        with session() as other, transaction.atomic(), connection.cursor() as cursor:
            other.execute("SELECT FROM tasks_task FOR UPDATE")
            cursor.execute("SET LOCAL lock_timeout = '50ms'")
            assert int(echo().enqueue(1).id) == holder.pk
            assert by_sql(echo(), 1) == holder.pk

    def test_a_locked_row_that_runs_holds_up_no_replacement(self):
        """The pessimistic strategy keeps it locked until its end."""
        holder = rows.processing("w1", unique_key="k", unique_while="a")
        with session() as other, transaction.atomic(), connection.cursor() as cursor:
            other.execute("SELECT FROM tasks_task FOR NO KEY UPDATE")
            cursor.execute("SET LOCAL lock_timeout = '50ms'")
            assert int(echo(on_duplicate="replace").enqueue(1).id) == holder.pk
            assert by_sql(echo(on_duplicate="replace"), 1) == holder.pk


@pytest.mark.django_db(transaction=True)
class TestBetweenInsertAndLookUp:
    """The task that has the key may end in between, again and again."""

    @staticmethod
    def ends(other: psycopg.Connection, times: int):
        """The task has ended whenever it is looked up, and another one has the key whenever it is to be inserted."""
        left = [times]

        def wrapper(execute, sql, params, many, context):
            if sql == keyed.HOLDERS and left[0]:
                left[0] -= 1
                other.execute("UPDATE tasks_task SET status = 'COMPLETED', finished_at = now()")
            elif sql == keyed.INSERT and left[0]:
                other.execute(INSERT, ["a"])
            return execute(sql, params, many, context)

        return connection.execute_wrapper(wrapper)

    def test_then_it_is_inserted(self):
        with session(autocommit=True) as other, self.ends(other, 1):
            result = echo().enqueue(1)
        assert list(Task.objects.order_by("id").values_list("status", flat=True)) == ["COMPLETED", "READY"]
        assert Task.objects.get(status="READY").pk == int(result.id)

    def test_the_search_ends(self):
        with session(autocommit=True) as other, self.ends(other, keyed.ROUNDS):
            with pytest.raises(exceptions.KeyBusy, match="The unique key 'k' changed hands 20 times"):
                echo().enqueue(1)
            assert Task.objects.count() == keyed.ROUNDS
            assert echo().enqueue(1).status == TaskResultStatus.READY
