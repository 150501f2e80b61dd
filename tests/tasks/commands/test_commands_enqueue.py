"""`enqueue_task`: registered tasks only, with checked arguments, all or none."""

from datetime import UTC, datetime

import pytest

from tasks.framework.decorator import task
from tasks.models import Intervention, Task
from tests.commands import run
from tests.tasks.handlers import add, by_account, echo


@task(priority=9)
def urgent() -> None: ...


pytestmark = pytest.mark.django_db


def enqueue(*argv):
    return run("enqueue_task", "--json", *argv)


def test_a_task_is_enqueued_with_its_arguments():
    outcome = enqueue(add.module_path, "--args", "[1]", "--kwargs", '{"second": 2}')
    row = Task.objects.get()
    assert (outcome.status, outcome.data) == (0, {"ids": [row.pk], "count": 1, "duplicates": 0})
    assert (row.task_path, row.args, row.kwargs, row.status) == (add.module_path, [1], {"second": 2}, "READY")


def test_options_replace_what_the_task_declares():
    enqueue(add.module_path, "--queue", "slow", "--priority", -5, "--run-after", "2031-01-31T03:00:00Z",
            "--ordering-key", "k")  # fmt: skip
    row = Task.objects.get()
    assert (row.queue_name, row.priority, row.ordering_key) == ("slow", -5, "k")
    assert row.run_after == datetime(2031, 1, 31, 3, tzinfo=UTC)


def test_a_priority_of_zero_is_a_priority():
    enqueue(urgent.module_path, "--priority", 0)
    assert Task.objects.get().priority == 0


def test_the_key_is_computed_from_the_arguments():
    enqueue(by_account.module_path, "--args", '["anna"]')
    assert Task.objects.get().ordering_key == "anna"


def test_of_many_the_first_and_the_last_are_told():
    outcome = enqueue(echo.module_path, "--count", 2500)
    ids = sorted(Task.objects.values_list("pk", flat=True))
    assert outcome.data == {"ids": [ids[0], ids[-1]], "count": 2500, "duplicates": 0}
    assert len(ids) == 2500


def test_one_intervention_tells_of_all():
    enqueue(echo.module_path, "--count", 3, "--reason", "drill")
    first, *_, last = Task.objects.order_by("pk")
    entry = Intervention.objects.get()
    assert (entry.action, entry.target) == (f"enqueue count=3 last_id={last.pk}", f"task:{first.pk}")
    assert entry.reason == "drill"


def test_an_unregistered_path_is_refused_with_similar_ones():
    outcome = enqueue(add.module_path[:-1])
    assert (outcome.status, Task.objects.count()) == (1, 0)
    assert add.module_path in outcome.data["error"]


@pytest.mark.parametrize("path", ["tasks.tasks.run_registered_pattern", "dashboard.tasks.run_lab"])
def test_what_pages_ask_for_under_rights_of_their_own_is_refused(path):
    outcome = enqueue(path, "--args", '["x"]')
    assert (outcome.status, Task.objects.count()) == (1, 0)
    assert "belongs to a page of its own" in outcome.data["error"]


def test_a_callable_that_is_no_task_is_refused():
    assert enqueue("os.system", "--args", '["true"]').status == 1


@pytest.mark.parametrize(
    "argv",
    [
        ("--args", "{"),
        ("--args", "3"),
        ("--args", '{"a": 1}'),
        ("--kwargs", "[]"),
        ("--args", "[NaN]"),
        ("--args", "[" * 100_000),
        ("--run-after", "tomorrow"),
        ("--run-after", "0001-01-01T00:00:00+14:00"),
        ("--count", "0"),
        ("--priority", "101"),
        ("--queue", ""),
        ("--ordering-key", "x" * 300),
    ],
)
def test_usage_errors(argv):
    outcome = enqueue(add.module_path, *argv)
    assert (outcome.status, outcome.stdout, Task.objects.count()) == (2, "", 0)
    assert "Traceback" not in outcome.stderr


def test_arguments_that_cannot_be_stored_are_refused_with_their_place():
    outcome = enqueue(echo.module_path, "--args", r'["\u0000"]')
    assert (outcome.status, Task.objects.count()) == (1, 0)
    assert "args[0]" in outcome.data["error"]


def test_a_dry_run_enqueues_nothing():
    assert enqueue(echo.module_path, "--count", 4, "--dry-run").data["count"] == 4
    assert not Task.objects.exists()
    assert not Intervention.objects.exists()
