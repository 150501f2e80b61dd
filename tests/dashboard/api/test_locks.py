"""The API of locks: the tree of a real scene, signals to its sessions, and named locks whose holders are gone."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.contrib.auth.models import Group, Permission
from django.db import connection

from tasks.models import Intervention, Lock, Queue, Schedule
from tests.dashboard.api.programs import Program
from tests.dashboard.scenes import LOCK_ORDER, Scene, queue_for_one_row
from tests.tasks import handlers
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def admin(settings) -> Program:
    settings.SHARED_LOOK_SECONDS = 0
    return Program("Lock administrators")


def test_the_tree_names_who_waits_for_whom_and_the_root_is_ended(admin):
    with queue_for_one_row(2, 0) as scene:
        found = admin.read("/locks")
        root, first, second = found["items"]
        assert (root["level"], root["pid"], root["victims"]) == (1, scene.pid("psql"), 2)
        assert {first["pid"], second["pid"]} == {scene.pid("waiter 0"), scene.pid("waiter 1")}
        assert first["waits_for"]["seconds"] >= 0
        assert found["blocked"] == 2
        signal = {"pid": root["pid"], "started": root["started"], "action": "terminate"}
        assert admin.tried("/locks/signals", signal) == 422  # without a reason
        stale = {**signal, "started": "2020-01-01T00:00:00Z", "reason": "x"}
        assert admin.tried("/locks/signals", stale) == 409
        assert not scene.sessions["psql"].closed
        assert admin.do("/locks/signals", {**signal, "reason": "blocks the shop"})["signalled"]
        wait_until(lambda: all(item["pid"] != root["pid"] for item in admin.read("/locks")["items"]))
    [entry] = Intervention.objects.filter(source="api")
    assert (entry.target, entry.reason) == (f"backend:{root['pid']}", "blocks the shop")


def test_the_tree_is_told_while_every_table_of_tasks_is_locked(admin):
    with Scene() as scene:
        scene.holding("migration", "LOCK TABLE tasks_task, tasks_worker, orders_order IN ACCESS EXCLUSIVE MODE")
        scene.waiting("report", "SELECT count(*) FROM tasks_task")
        found = admin.read("/locks")
    assert [item["pid"] for item in found["items"]] == [scene.pid("migration"), scene.pid("report")]
    assert {"table": "tasks_task", "pid": scene.pid("migration")} in found["unavailable"]


def test_a_write_that_meets_a_migration_is_told_its_pid(admin):
    def tried(caller: Program) -> tuple[int, str]:
        problem = caller.post("/queues/mail/pause", key="one")
        return caller.status, problem.get("detail", "")

    Group.objects.create(name="Pausers").permissions.add(Permission.objects.get(codename="pause_queue"))
    blind = Program("Pausers", username="bob")
    with Scene() as scene, lock_timeout("200ms"):
        scene.holding("migration", "LOCK TABLE dashboard_apirequest IN ACCESS EXCLUSIVE MODE")
        status, detail = tried(admin)
        assert (status, admin.response["Retry-After"]) == (503, "5"), detail
        assert f"pid {scene.pid('migration')} · migration" in detail
        assert "holds dashboard_apirequest" in detail
        status, detail = tried(blind)
        assert (status, "pid" in detail, "show_locks" in detail) == (503, False, True), detail
    assert tried(admin) == (200, ""), "the same key again"
    assert (Queue.objects.get().paused, Intervention.objects.filter(action="pause").count()) == (True, 1)


def test_a_read_that_meets_a_migration_is_told_its_pid(admin):
    with Scene() as scene, lock_timeout("200ms"):
        scene.holding("migration", "LOCK TABLE tasks_task IN ACCESS EXCLUSIVE MODE")
        assert admin.asked("/tasks") == 503
        assert f"pid {scene.pid('migration')}" in admin.response.json()["detail"]


def test_a_write_that_meets_a_held_row_is_told_its_pid(admin):
    Schedule.objects.create(name="nightly", task_path=handlers.add.module_path, every_seconds=60)
    with Scene() as scene, lock_timeout("200ms"):
        scene.holding("psql", "SELECT FROM tasks_schedule FOR UPDATE")
        assert admin.tried("/schedules/nightly/pause") == 409
        assert f"pid {scene.pid('psql')}" in admin.response.json()["detail"]


@contextmanager
def lock_timeout(limit: str) -> Iterator[None]:
    """Tests run without the limits of a page."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [limit])
        yield
        cursor.execute("RESET lock_timeout")


def test_a_named_lock_is_released_when_its_holder_is_gone(admin):
    with connection.cursor() as cursor:
        cursor.execute("SELECT rowlock_lock_acquire('nightly', 'cron.pl', interval '1 hour', 'db1', 99)")
        [fence] = cursor.fetchone()
    [found] = admin.read("/locks/named")["items"]
    assert (found["name"], found["fence"], found["life"]) == ("nightly", fence, "unseen")
    assert admin.tried("/locks/named/nightly/release", {"fence": fence}) == 422
    other = {"fence": fence + 1, "reason": "gone"}
    assert admin.tried("/locks/named/nightly/release", other) == 409
    assert Lock.objects.get().owner == "cron.pl"
    assert admin.do("/locks/named/nightly/release", {"fence": fence, "reason": "gone"}) == {"released": True}
    assert Lock.objects.get().owner is None


def test_rows_of_the_tree_are_named(admin):
    with queue_for_one_row(1, 0) as scene:
        assert scene.pids
        [root, waiter] = admin.read("/locks")["items"]
    assert waiter["waits_for"]["target"].startswith("order ")
    assert root["rows"] == [waiter["waits_for"]["target"]]
    assert LOCK_ORDER
