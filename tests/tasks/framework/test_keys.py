"""Unique and concurrency keys: where they come from, and that every door stores them."""

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction

from tasks.exceptions import InvalidArguments
from tasks.models import Task
from tests.commands import run
from tests.tasks import handlers

pytestmark = pytest.mark.django_db
CALL = "SELECT rowlock_enqueue('any.task', unique_key => %s, unique_while => %s, concurrency_key => %s)"
INSERT = "INSERT INTO tasks_task (task_path, {}) VALUES ('any.task', {})"


def keys() -> list[tuple[str | None, str | None, str | None, int | None]]:
    columns = ("unique_key", "unique_while", "concurrency_key", "concurrency_limit")
    return list(Task.objects.order_by("id").values_list(*columns))


def test_a_task_without_keys_stores_none():
    handlers.echo.enqueue(1)
    handlers.echo.enqueue_many([((2,), {})])
    assert keys() == [(None, None, None, None)] * 2


def test_one_call_stores_its_keys():
    handlers.index.enqueue("a")
    handlers.index_again.enqueue("b")
    handlers.at_most_three.enqueue("anna")
    handlers.echo.using(unique_key="c", concurrency_key="bert").enqueue(1)
    assert keys() == [
        ("a", "a", None, None),
        ("b", "q", None, None),
        (None, None, "anna", 3),
        ("c", "a", "bert", None),
    ]


def test_each_of_many_calls_stores_its_own_keys():
    handlers.at_most_three.enqueue_many([(("anna",), {}), ((None,), {}), (("bert",), {})])
    ids = handlers.index.enqueue_many([(("z",), {}), ((None,), {}), (("a",), {})])
    assert keys() == [
        (None, None, "anna", 3),
        (None, None, None, None),
        (None, None, "bert", 3),
        ("z", "a", None, None),
        (None, None, None, None),
        ("a", "a", None, None),
    ]
    assert ids == sorted(ids)


def test_a_key_of_the_arguments_is_equal_however_they_are_passed():
    calls = [((1, 2), {}), ((1,), {"second": 2}), ((), {"second": 2, "first": 1})]
    assert len(set(handlers.once_per_arguments.enqueue_many(calls))) == 1
    [(key, *_)] = keys()
    assert key.startswith("once_per_arguments:")
    assert len(key) < 100


def test_a_key_of_the_arguments_differs_by_path_and_by_value():
    calls = [((1,), {}), ((1.0,), {}), ((True,), {}), ((1, 0), {})]
    assert len(set(handlers.once_per_arguments.enqueue_many(calls))) == 4
    handlers.echo.using(unique_key=None).enqueue(1)
    same = handlers.add.__class__.of(handlers.add)
    assert same.using(unique_key="k").enqueue(1, 2).id != handlers.once_per_arguments.enqueue(1, 2).id


def test_arguments_that_the_function_does_not_take_have_no_key():
    with pytest.raises(InvalidArguments, match="once_per_arguments cannot be called with these arguments: missing"):
        handlers.once_per_arguments.enqueue()
    with pytest.raises(InvalidArguments, match=r"Call 1: The unique key of .* cannot be had from these arguments"):
        handlers.index.enqueue_many([(("a",), {}), ((), {})])


def test_a_key_that_cannot_be_stored_is_refused():
    with pytest.raises(InvalidArguments, match="The unique key has 256 characters, at most 255 fit"):
        handlers.index.enqueue("k" * 256)
    with pytest.raises(InvalidArguments, match="The concurrency key must be text, not int"):
        handlers.at_most_three.enqueue(5)


def test_the_function_for_other_languages_stores_them():
    with connection.cursor() as cursor:
        cursor.execute(CALL, ["a", "queued", "anna"])
        cursor.execute(CALL, [None, "active", None])
    assert keys() == [("a", "q", "anna", None), (None, None, None, None)]


def test_the_command_stores_them():
    words = ("--unique-key", "a", "--unique-while", "queued", "--concurrency-key", "anna")
    outcome = run("enqueue_task", "--json", handlers.echo.module_path, *words)
    assert outcome.data == {"ids": [Task.objects.get().pk], "count": 1, "duplicates": 0}
    assert keys() == [("a", "q", "anna", None)]


@pytest.mark.parametrize(
    ("columns", "values", "constraint"),
    [
        ("unique_key, unique_while", "'', 'a'", "tasks_task_keys_valid"),
        ("unique_key, unique_while", "repeat('k', 256), 'a'", "tasks_task_keys_valid"),
        ("unique_key, unique_while", "E'a\\nb', 'a'", "tasks_task_keys_valid"),
        ("unique_key, unique_while", "'k', 'x'", "tasks_task_keys_valid"),
        ("unique_key, unique_while", "'k', ''", "tasks_task_keys_valid"),
        ("unique_key", "'k'", "tasks_task_keys_valid"),
        ("unique_while", "'a'", "tasks_task_keys_valid"),
        ("concurrency_key", "''", "tasks_task_keys_valid"),
        ("concurrency_key", "E'\\x7f'", "tasks_task_keys_valid"),
        ("concurrency_key", "repeat('k', 256)", "tasks_task_keys_valid"),
        ("concurrency_limit", "0", "tasks_task_keys_valid"),
        ("concurrency_limit", "1", "tasks_task_keys_valid"),
        ("concurrency_key, concurrency_limit", "'k', 0", "tasks_task_keys_valid"),
        ("concurrency_key, concurrency_limit", "'k', 10001", "tasks_task_keys_valid"),
    ],
)
def test_raw_sql_is_refused_too(columns, values, constraint):
    with pytest.raises(DatabaseError) as refusal, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(INSERT.format(columns, values))
    assert isinstance(refusal.value.__cause__, psycopg.errors.CheckViolation)
    assert refusal.value.__cause__.diag.constraint_name == constraint


def test_the_largest_keys_are_stored():
    with connection.cursor() as cursor:
        columns = "unique_key, unique_while, concurrency_key, concurrency_limit"
        cursor.execute(INSERT.format(columns, "repeat('ß', 255), 'a', repeat('ß', 255), 10000"))
    assert keys() == [("ß" * 255, "a", "ß" * 255, 10_000)]
