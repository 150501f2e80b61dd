"""`rowlock_enqueue()`: what programs in other languages call, on a session that knows nothing of Django."""

import json
from datetime import timedelta

import psycopg
import pytest
from django.utils import timezone

from tasks import testing
from tasks.models import Task
from tests.sessions import session
from tests.tasks import handlers

pytestmark = pytest.mark.django_db(transaction=True)

ADD = "tests.tasks.handlers.add"


@pytest.fixture
def other():
    with session(autocommit=True) as session_of_another_program:
        yield session_of_another_program


def call(other: psycopg.Connection, arguments: str, **values: object) -> int:
    return other.execute(f"SELECT rowlock_enqueue({arguments})", values).fetchone()[0]


def test_positional_parameters(other):
    id = call(other, "%(path)s, '[1]', '{\"second\": 2}', 'sums'", path=ADD)
    row = Task.objects.get(pk=id)
    assert (row.task_path, row.args, row.kwargs, row.queue_name) == (ADD, [1], {"second": 2}, "sums")
    assert row.run_after == row.created_at


def test_named_parameters(other):
    later = timezone.now() + timedelta(days=1)
    id = call(
        other,
        "task_path => %(path)s, kwargs => '{\"first\": 1}', run_after => %(later)s, priority => -5,"
        "ordering_key => 'anna', max_attempts => 2",
        path=ADD,
        later=later,
    )
    row = Task.objects.get(pk=id)
    assert (row.args, row.kwargs, row.queue_name, row.run_after) == ([], {"first": 1}, "default", later)
    assert (row.priority, row.ordering_key, row.max_attempts) == (-5, "anna", 2)


def test_what_it_enqueued_runs(other):
    call(other, "%(path)s, '[1, 2]'", path=ADD)
    assert [result.return_value for result in testing.run_due()] == [3]


def test_neither_search_path_nor_temporary_tables_of_the_caller_lead_it_astray(other):
    other.execute("CREATE TEMPORARY TABLE tasks_task (id int)")
    other.execute("SET search_path = pg_catalog")
    other.execute("SELECT public.rowlock_enqueue(%(path)s)", {"path": ADD})
    assert Task.objects.count() == 1


def test_it_is_part_of_the_caller_s_transaction():
    with session() as other:
        call(other, "%(path)s", path=ADD)
        other.rollback()
    assert not Task.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("'nodots'", "task_path 'nodots' names no function", "dotted path"),
        ("''", "task_path '' names no function", "dotted path"),
        ("NULL", "task_path NULL names no function", "dotted path"),
        ("'a.b', '{}'", "args is object, not a JSON array", "positional"),
        ("'a.b', NULL", "args is NULL, not a JSON array", "positional"),
        ("'a.b', '[]', '[]'", "kwargs is array, not a JSON object", "keyword"),
        ("'a.b', '[]', '{}', ''", "queue must have 1 to 255 characters", "default"),
        ("'a.b', queue => NULL", "queue must have 1 to 255 characters", "default"),
        ("'a.b', queue => repeat('q', 256)", "queue must have 1 to 255 characters", "default"),
        ("'a.b', ordering_key => ''", "ordering_key must have 1 to 255 characters", "NULL"),
        ("'a.b', unique_key => ''", "unique_key and concurrency_key must have 1 to 255 characters", "NULL"),
        ("'a.b', concurrency_key => repeat('k', 256)", "must have 1 to 255 characters", "NULL"),
        ("'a.b', unique_while => 'ready'", "unique_while must be queued or active, not 'ready'", "active"),
        ("'a.b', on_duplicate => NULL", "on_duplicate must be keep or replace, not NULL", "keep"),
        ("'a.b', priority => 101", "priority must be between -100 and 100, not 101", "leave it out"),
        ("'a.b', priority => NULL", "priority must be between -100 and 100, not NULL", "leave it out"),
        ("'a.b', max_attempts => 0", "max_attempts must be between 1 and 1000, not 0", "Leave it out"),
        ("'a.b', run_after => '-infinity'", "run_after -infinity is no time that a worker can read", "NULL for now"),
        ("'a.b', run_after => '20000-01-01'", "is no time that a worker can read", "NULL for now"),
        ("'a.b', jsonb_build_array(repeat('x', 1000000))", "at most 1000000 are stored", "pass its key"),
        ("'a.b', (repeat('[', 101) || repeat(']', 101))::jsonb", "more than 100 levels", "pass its key"),
        (
            "'a.b', '[]', ('{\"a\": ' || repeat('[', 100) || repeat(']', 100) || '}')::jsonb",
            "more than 100 levels",
            "pass its key",
        ),
    ],
)
def test_an_error_says_what_is_wrong_and_what_to_do(other, arguments, message, hint):
    with pytest.raises((psycopg.errors.InvalidParameterValue, psycopg.errors.ProgramLimitExceeded)) as failure:
        call(other, arguments)
    assert message in failure.value.diag.message_primary
    assert hint in failure.value.diag.message_hint
    assert not Task.objects.exists()


def test_as_many_levels_as_the_backend_takes(other):
    call(other, "%(path)s, (repeat('[', 100) || repeat(']', 100))::jsonb", path=ADD)
    nested = Task.objects.get().args
    handlers.echo.enqueue(*nested)
    with pytest.raises(ValueError, match="More than 100 levels"):
        handlers.echo.enqueue(nested)


def test_the_limit_can_be_set_for_the_database(other):
    other.execute("SET rowlock.max_argument_bytes = '100'")
    with pytest.raises(psycopg.Error, match="at most 100 are stored"):
        call(other, "'a.b', %(args)s::jsonb", args=json.dumps(["x" * 100]))
    other.execute("SET rowlock.max_argument_bytes = '2000000'")
    call(other, "'a.b', %(args)s::jsonb", args=json.dumps(["x" * 1_500_000]))


def test_a_time_that_python_cannot_read_cannot_be_written_past_the_function(other):
    with pytest.raises(psycopg.errors.CheckViolation, match="tasks_task_run_after_readable"):
        other.execute("INSERT INTO tasks_task (task_path, run_after) VALUES ('a.b', '-infinity')")


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NO_TRACES = ["", "00-1-2-01", TRACE.upper(), f"{TRACE}\n", f"00-{'0' * 32}-{TRACE[36:]}", f"ff{TRACE[2:]}"]


@pytest.mark.parametrize("text", NO_TRACES)
def test_what_is_no_traceparent_is_refused(other, text):
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="has not the form of W3C trace context"):
        call(other, "%(path)s, traceparent => %(text)s", path=ADD, text=text)
    with pytest.raises(psycopg.errors.CheckViolation, match="tasks_task_traceparent_form"):
        other.execute("INSERT INTO tasks_task (task_path, traceparent) VALUES (%s, %s)", [ADD, text])


def test_a_replaced_call_brings_its_trace(other):
    again = f"{TRACE[:53]}00"
    for trace in (TRACE, again):
        arguments = "%(path)s, unique_key => 'k', on_duplicate => 'replace', traceparent => %(trace)s"
        id = call(other, arguments, path=ADD, trace=trace)
    assert Task.objects.get(pk=id).traceparent == again
