"""The summary for the fleet and the search: true to the rows, also while a table is locked."""

import pytest
from django.db import connection
from django.utils import timezone

import tasks
from dashboard.api import summary
from tasks.models import Task, Throughput
from tests.dashboard.api.programs import Program
from tests.dashboard.scenes import Scene, queue_for_one_row
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def viewer(settings) -> Program:
    settings.SHARED_LOOK_SECONDS = 0
    return Program("Viewers")


def test_the_summary_is_what_the_rows_say(viewer):
    rows.ready(queue_name="mail")
    rows.failed(queue_name="mail")
    minute = timezone.now().replace(second=0, microsecond=0)
    Throughput.objects.create(queue_name="mail", minute=minute, shard=1, completed=7)
    with rows.living_worker("w1"), queue_for_one_row(2, 0):
        rows.processing("w1", queue_name="mail")
        found = viewer.read("/summary")
    assert found["version"] == tasks.__version__
    assert found["database"] == {
        "name": connection.settings_dict["NAME"],
        "server_version": server_version(),
    }
    [queue] = found["queues"]
    assert (queue.pop("oldest_seconds") or 0) >= 0
    assert queue == {"name": "mail", "ready": 1, "running": 1, "failed": 1}
    assert (len(found["throughput"]), sum(found["throughput"])) == (60, 7)
    assert found["workers"] == {"alive": 1, "of": 1}
    assert found["blocked_sessions"] == 2
    assert (found["health"], found["severity"]) == ("warning", {"critical": 0, "warnings": 1})
    assert found["unavailable"] == []


def test_work_that_stands_still_is_critical(viewer):
    rows.ready()
    found = viewer.read("/summary")
    assert (found["health"], found["severity"]["critical"]) == ("critical", 1)


def test_the_summary_answers_while_the_tasks_are_locked(viewer):
    rows.ready()
    with Scene() as scene:
        scene.holding("migration", "LOCK TABLE tasks_task IN ACCESS EXCLUSIVE MODE")
        found = viewer.read("/summary")
        with rows.living_worker("w7f3"):
            assert [item["id"] for item in viewer.read("/find", q="w7")["items"]] == ["w7f3"]
    assert (found["health"], found["queues"]) == ("critical", [])
    assert "queues" in found["unavailable"]


def test_a_look_is_shared(viewer, settings, django_assert_max_num_queries):
    settings.SHARED_LOOK_SECONDS = 60
    viewer.read("/summary")
    with django_assert_max_num_queries(8):  # the token, its person and their rights
        viewer.read("/summary")


def test_a_task_a_worker_and_a_key_are_found(viewer):
    keyed = rows.ready(ordering_key="account 7", unique_key="import 12", unique_while="q")
    rows.completed(ordering_key="account 7")
    with rows.living_worker("w7f3"):
        found = {
            text: viewer.read("/find", q=text)["items"]
            for text in (f"#{keyed.pk}", "w7f", "account 7", "import 12", "account", "!")
        }
    kinds = {text: [(item["kind"], item["id"]) for item in items] for text, items in found.items()}
    assert kinds == {
        f"#{keyed.pk}": [("task", str(keyed.pk))],
        "w7f": [("worker", "w7f3")],
        "account 7": [("ordering_key", str(keyed.pk))],
        "import 12": [("unique_key", str(keyed.pk))],
        "account": [],
        "!": [],
    }
    assert found["account 7"][0]["url"] == f"/admin/tasks/task/{keyed.pk}/"


def test_at_most_twenty_are_found(viewer):
    rows.many(30, ordering_key="one")
    assert len(viewer.read("/find", q="one")["items"]) == 20


def test_keys_are_found_by_their_indexes(db):
    rows.many(
        3000, status="COMPLETED", finished_at=timezone.now(), ordering_key="old", unique_key="old", unique_while="q"
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE tasks_task")
    found = summary.conditions("old")
    assert list(found) == ["unique_key", "ordering_key"]
    for condition in found.values():
        plan = Task.objects.filter(condition).order_by("ordering_key", "pk")[: summary.MOST].explain()
        assert "tasks_task_keyed" in plan or "tasks_task_one_per_unique_key" in plan, plan


def server_version() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        return cursor.fetchone()[0].split()[0]
