"""Operators and unique keys: what would double a key is refused by name, one task or a thousand."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tasks import operations
from tasks.models import Intervention, Task
from tasks.operations import Settings, bulk, unique
from tasks.operations.filters import TaskFilter
from tasks.support.audit import Who
from tests.commands import run
from tests.sessions import session
from tests.tasks import rows
from tests.tasks.bulk import ask

pytestmark = pytest.mark.django_db
ANNA = Who("anna", "page")
STATES = [rows.failed, rows.cancelled]
ENQUEUE = "SELECT rowlock_enqueue('any.task', unique_key => 'k')"


def ready() -> dict[int, str | None]:
    return dict(Task.objects.ready().values_list("id", "unique_while"))


@pytest.mark.parametrize("letter", ["q", "a", "b"])
@pytest.mark.parametrize("state", STATES)
def test_a_requeue_that_would_double_a_key_is_refused_and_names_the_other_task(state, letter):
    task, holder = state(unique_key="k", unique_while=letter), rows.ready(unique_key="k", unique_while="a")
    outcome = run("requeue_tasks", "--json", task.pk)
    assert outcome.status == 1
    [refusal] = outcome.data["refused"]
    assert (refusal["id"], refusal["reason"]) == (task.pk, "key_taken")
    assert f"task #{holder.pk} has its unique key k" in outcome.stderr
    assert ready() == {holder.pk: "a"}
    assert not Intervention.objects.exists()


def test_a_running_task_holds_an_active_key_and_no_queued_one():
    task = rows.failed(unique_key="k", unique_while="a")
    running = rows.processing("w1", unique_key="k", unique_while="a")
    assert operations.requeue([task.pk], ANNA).refused[task.pk].code == "key_taken"
    Task.objects.filter(pk=running.pk).update(unique_while="q")
    assert operations.requeue([task.pk], ANNA).done == [task.pk]


@pytest.mark.parametrize(("before", "after"), [("a", "a"), ("q", "q"), ("b", "q")])
@pytest.mark.parametrize("state", STATES)
def test_a_requeue_takes_the_key_again(state, before, after):
    task = state(unique_key="k", unique_while=before)
    assert operations.requeue([task.pk], ANNA).done == [task.pk]
    assert ready() == {task.pk: after}


def test_a_stale_task_is_requeued_without_its_key_if_another_has_it():
    task = rows.processing(rows.dead_worker(), unique_key="k", unique_while="q")
    holder = rows.ready(unique_key="k", unique_while="q")
    assert operations.requeue([task.pk], ANNA).done == [task.pk]
    assert ready() == {task.pk: "b", holder.pk: "q"}


@pytest.mark.parametrize("letter", ["q", "a"])
def test_of_two_with_one_key_the_first_is_requeued(letter):
    first, second = (rows.failed(unique_key="k", unique_while=letter) for _ in range(2))
    result = operations.requeue([second.pk, first.pk], ANNA)
    assert (result.done, result.refused[second.pk].code) == ([first.pk], "key_taken")
    assert f"#{first.pk}" in result.refused[second.pk].sentence


def test_a_bulk_run_leaves_them_out_and_counts_them():
    plain = [rows.failed().pk for _ in range(5)]
    free = [rows.failed(unique_key=f"free {number}", unique_while="a").pk for number in range(5)]
    for number in range(5):
        rows.failed(unique_key=f"taken {number}", unique_while="a")
        rows.ready(unique_key=f"taken {number}", unique_while="a")
    kept = ask("requeue", TaskFilter(statuses=("FAILED",)))
    bulk.carry_out(kept.pk)
    kept.refresh_from_db()
    assert (kept.looked, kept.done, kept.refused) == (15, 10, 5)
    assert (list(kept.refusals), kept.refusals["key_taken"]["number"]) == (["key_taken"], 5)
    assert {*plain, *free} <= set(ready())


@pytest.mark.parametrize("letter", ["q", "a"])
def test_quarantine_refuses_them_too(letter):
    task, holder = rows.failed(unique_key="k", unique_while=letter), rows.ready(unique_key="k", unique_while="a")
    free = rows.failed(unique_key="free", unique_while="b")
    result = operations.quarantine([task.pk, holder.pk, free.pk], ANNA)
    assert (sorted(result.done), result.refused[task.pk].code) == ([holder.pk, free.pk], "key_taken")
    assert ready() == {holder.pk: "a", free.pk: "q"}


def test_edits_and_cancels_know_no_keys():
    holder = rows.ready(unique_key="k", unique_while="a")
    failed = rows.failed(unique_key="k", unique_while="a")
    assert operations.edit([holder.pk], ANNA, Settings(priority=5)).done == [holder.pk]
    assert operations.cancel([holder.pk], ANNA, Settings(reason="no")).done == [holder.pk]
    assert operations.requeue([failed.pk], ANNA).done == [failed.pk]
    assert operations.requeue([holder.pk], ANNA).refused[holder.pk].code == "key_taken"


@pytest.fixture
def _looked_too_early(monkeypatch):
    """Another enqueued the key after the look."""
    seen = iter([{}])
    monkeypatch.setattr(unique, "holders", lambda keys, look=unique.holders: next(seen, None) or look(keys))


@pytest.mark.usefixtures("_looked_too_early")
def test_a_key_that_was_taken_since_the_look_is_found_by_the_index():
    tasks = [rows.failed(unique_key=f"k{number}", unique_while="a").pk for number in range(20)]
    holder = rows.ready(unique_key="k7", unique_while="a")
    result = operations.requeue(tasks, ANNA, Settings(spread_minutes=20))
    assert result.done == [task for task in tasks if task != tasks[7]]
    assert list(result.refused) == [tasks[7]]
    assert f"#{holder.pk}" in result.refused[tasks[7]].sentence
    times = list(Task.objects.filter(pk__in=result.done).order_by("id").values_list("run_after", flat=True))
    assert len(set(times)) == 19


@pytest.mark.django_db(transaction=True)
def test_an_enqueuer_s_open_transaction_holds_up_its_key_alone():
    tasks = [rows.failed(unique_key=key, unique_while="a").pk for key in "abkxyz"]
    with session() as enqueuer:
        enqueuer.execute(ENQUEUE)
        result = operations.requeue(tasks, ANNA)
    assert sorted(result.done) == [task for task in tasks if task != tasks[2]]
    assert result.refused[tasks[2]].code == "key_busy"
    assert "unique key k; try again" in result.refused[tasks[2]].sentence


def test_tasks_without_keys_are_requeued_in_the_same_statements_as_before():
    tasks = [rows.failed().pk for _ in range(3)]
    with CaptureQueriesContext(connection) as queries:
        assert operations.requeue(tasks, ANNA).done == tasks
    statements = [query["sql"] for query in queries]
    assert sum("UPDATE tasks_task" in sql for sql in statements) == 1
    assert not [sql for sql in statements if sql == unique.LIMIT_SEARCH or 'unique_key" IN' in sql]
