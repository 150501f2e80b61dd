"""Bulk enqueueing: some thousands in a statement, in order, all or none."""

import itertools

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from tasks.compat import task_enqueued
from tasks.exceptions import InvalidArguments
from tasks.framework import enqueue
from tasks.models import Task
from tests.tasks import handlers

pytestmark = pytest.mark.django_db


@pytest.fixture
def chunks_of_ten(monkeypatch):
    monkeypatch.setattr(enqueue, "CHUNK_ROWS", 10)


def inserts(queries: CaptureQueriesContext) -> int:
    return sum("INSERT INTO tasks_task" in query["sql"] for query in queries)


def test_ids_follow_the_order_of_the_calls():
    ids = handlers.echo.enqueue_many(((number,), {}) for number in range(100))
    assert ids == sorted(ids)
    assert [Task.objects.get(pk=id).args for id in ids] == [[number] for number in range(100)]


def test_each_call_has_its_own_arguments_and_key():
    ids = handlers.by_account.using(priority=3, queue_name="q").enqueue_many([(("a", 1), {}), ((), {"account": None})])
    rows = Task.objects.filter(pk__in=ids).order_by("id")
    assert [(row.args, row.kwargs, row.ordering_key) for row in rows] == [
        (["a", 1], {}, "a"),
        ([], {"account": None}, None),
    ]
    assert {(row.priority, row.queue_name, row.status) for row in rows} == {(3, "q", "READY")}


def test_text_that_looks_like_json_or_null_stays_text():
    [id] = handlers.by_account.enqueue_many([(('nu"ll', "[1]", "null", None), {})])
    row = Task.objects.get(pk=id)
    assert (row.args, row.ordering_key) == (['nu"ll', "[1]", "null", None], 'nu"ll')


@pytest.mark.parametrize(("calls", "statements"), [(0, 0), (1, 1), (10, 1), (11, 2), (25, 3)])
def test_a_chunk_is_one_statement(chunks_of_ten, calls, statements):
    with CaptureQueriesContext(connection) as queries:
        ids = handlers.echo.enqueue_many(itertools.repeat(((1,), {}), calls))
    assert inserts(queries) == statements
    assert len(ids) == Task.objects.count() == calls


def test_large_arguments_make_smaller_chunks(monkeypatch):
    monkeypatch.setattr(enqueue, "CHUNK_CHARACTERS", 1000)
    with CaptureQueriesContext(connection) as queries:
        handlers.echo.enqueue_many(itertools.repeat((("x" * 400,), {}), 6))
    assert inserts(queries) == 2


def test_a_bad_call_is_named_and_nothing_of_any_chunk_stays(chunks_of_ten):
    calls = [((number,), {}) for number in range(15)] + [(("\0",), {})]
    with pytest.raises(InvalidArguments, match=r"^Call 15: args\[0\]: Text holds a NUL"):
        handlers.echo.enqueue_many(calls)
    assert not Task.objects.exists()


def test_the_caller_s_transaction_survives_a_bad_call(chunks_of_ten):
    with transaction.atomic():
        handlers.echo.enqueue("before")
        with pytest.raises(InvalidArguments):
            handlers.echo.enqueue_many([*[((1,), {})] * 15, (("\0",), {})])
        handlers.echo.enqueue("after")
    assert list(Task.objects.order_by("id").values_list("args", flat=True)) == [["before"], ["after"]]


def test_who_listens_hears_of_each():
    heard = []

    def hear(task_result, **kwargs):
        heard.append((int(task_result.id), task_result.args))

    task_enqueued.connect(hear)
    ids = handlers.echo.enqueue_many([((1,), {}), ((2,), {})])
    task_enqueued.disconnect(hear)
    assert heard == [(ids[0], [1]), (ids[1], [2])]
