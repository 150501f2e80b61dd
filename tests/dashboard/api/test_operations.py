"""The API of queues, limits, workers, schedules, lines and runs does what the pages do, with the same audit."""

import json
import secrets
from datetime import timedelta

import pytest
from django.utils import timezone

from dashboard.models import Acknowledgement, LabRun
from tasks.models import Intervention, Limit, Queue, Schedule, Task, Worker
from tasks.operations import schedules
from tasks.support.audit import Who
from tests.dashboard.api.programs import Program
from tests.dashboard.schedules.made import NOTHING, declared, made
from tests.tasks import rows

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Program:
    return Program("Operators")


@pytest.fixture(autouse=True)
def _every_look_is_new(settings) -> None:
    settings.SHARED_LOOK_SECONDS = 0


def audited() -> list[tuple[str, str, str]]:
    """The audit lines of the API alone."""
    done = Intervention.objects.filter(source="api").order_by("id")
    return list(done.values_list("action", "target", "reason"))


def test_a_queue_is_paused_once_and_resumed(operator):
    rows.ready(queue_name="mail/a b")
    assert operator.do("/queues/mail/a b/pause", {"reason": "the bank is down"}) == {"changed": True}
    assert operator.do("/queues/mail/a b/pause") == {"changed": False}
    found = operator.read("/queues/mail/a b")
    assert (found["ready"], found["paused"], found["workers"]) == (1, True, 0)
    assert operator.do("/queues/mail/a b/resume") == {"changed": True}
    assert audited() == [("pause", "queue:mail/a b", "the bank is down"), ("resume", "queue:mail/a b", "")]


def test_a_queue_is_configured_wholly_or_not_at_all(operator):
    body = {"recovery": "ask", "max_running": 5, "rate": "100/m", "reason": "quota"}
    assert operator.do("/queues/mail/configure", body) == {"changed": True}
    [found] = operator.read("/queues")["items"]
    assert (found["recovery"], found["max_running"], found["rate"]) == ("ask", 5, "100/m")
    assert operator.tried("/queues/mail/configure", {"recovery": "automatic", "rate": "0/m"}) == 422
    assert operator.do("/queues/mail/configure", {"max_running": None}) == {"changed": True}
    queue = Queue.objects.get()
    assert (queue.recovery, queue.max_running, queue.rate) == ("ask", None, 100)


def test_a_body_is_an_object_without_unknown_fields(operator):
    for body in (True, 5, "mail", [], None, {"resaon": "a slip"}):
        operator.send("post", "/queues/mail/pause", json.dumps(body), key=secrets.token_hex(8))
        assert operator.status == 422, body
    assert not Queue.objects.exists()


def test_a_parameter_that_there_is_not_is_refused(operator):
    for path in ("/limits", "/schedules", "/failures", "/audit", "/lab/runs", "/find"):
        assert operator.asked(path, q="x", statsu="x") == 422, path


def test_a_name_that_no_address_can_have_is_answered_in_the_form_of_the_api(operator):
    assert operator.tried("/queues/a%0Ab/pause") == 404
    assert operator.response["Content-Type"] == "application/json"


def test_a_queue_that_nothing_names_is_not_there(operator):
    assert operator.asked("/queues/nowhere") == 404


def test_a_limit_is_set_and_shown_with_its_holder(operator):
    rows.processing("w1", concurrency_key="tenant 7", slot=1)
    rows.ready(concurrency_key="tenant 7")
    assert operator.do("/limits/tenant 7/configure", {"max_running": 3, "paused": True}) == {"changed": True}
    [found] = operator.read("/limits")["items"]
    assert (found["key"], found["max_running"], found["running"], found["waiting"]) == ("tenant 7", 3, 1, 1)
    assert found["holders"][0]["worker_id"] == "w1"
    assert found["paused"]
    assert operator.do("/limits/tenant 7/configure", {"paused": False}) == {"changed": True}
    assert Limit.objects.get().max_running == 3


def test_the_limits_are_read_page_by_page(operator, monkeypatch):
    Limit.objects.bulk_create(Limit(key=f"k{number:03}", max_running=1) for number in range(120))
    seen, cursor = [], ""
    while cursor is not None:
        found = operator.read("/limits", cursor=cursor)
        seen += [item["key"] for item in found["items"]]
        cursor = found["next"]
    assert seen == [f"k{number:03}" for number in range(120)]


def test_a_worker_is_asked_to_stop_once(operator):
    Worker.objects.create(id="w1", hostname="host", pid=1, heartbeat_at=timezone.now())
    assert operator.do("/workers/w1/stop", {"reason": "deploy"}) == {"changed": True}
    assert operator.do("/workers/w1/stop") == {"changed": False}
    [found] = operator.read("/workers")["items"]
    assert found["stop_requested_at"]
    assert audited() == [("stop", "worker:w1", "deploy")]
    assert operator.tried("/workers/nobody/stop") == 404


class TestSchedules:
    def test_one_is_added_edited_run_and_deleted(self, operator):
        body = {"name": "nightly/a", "task_path": NOTHING, "cron": "0 3 * * *", "timezone": "Europe/Berlin"}
        assert operator.tried("/schedules", body) == 201
        assert operator.do("/schedules/nightly/a/edit", {"missed": "once"}) == {"changed": True}
        found = operator.read("/schedules/nightly/a")
        assert (found["cron"], found["missed"], found["state"]) == ("0 3 * * *", "once", "on")
        task_id = operator.do("/schedules/nightly/a/run")["task_id"]
        assert Task.objects.get().pk == task_id
        assert operator.do("/schedules/nightly/a/pause") == {"changed": True}
        assert operator.do("/schedules/nightly/a/pause") == {"changed": False}
        assert operator.do("/schedules/nightly/a/resume") == {"changed": True}
        assert operator.do("/schedules/nightly/a/delete", {"reason": "not wanted"}) == {"changed": True}
        assert operator.asked("/schedules/nightly/a") == 404
        assert [action.split()[0] for action, _target, _reason in audited()] == [
            "add", "edit", "run", "pause", "resume", "delete",
        ]  # fmt: skip

    def test_a_change_of_what_has_changed_since_is_refused(self, operator):
        made()
        schedules.edit("nightly", Who("bob", "page"), {"missed": "all"})
        assert operator.tried("/schedules/nightly/edit", {"missed": "once"}, version=1) == 412
        assert operator.tried("/schedules/nightly/delete", version=1) == 412
        assert Schedule.objects.get().missed == "all"
        assert operator.do("/schedules/nightly/edit", {"missed": "once"}, version=2)["changed"]

    def test_one_that_code_declares_is_not_deleted(self, operator):
        declared("nightly")
        assert operator.tried("/schedules/nightly/delete") == 409
        assert Schedule.objects.exists()

    def test_faults_are_422(self, operator):
        for body in (
            {"name": "a", "task_path": NOTHING, "cron": "* *"},
            {"name": "a", "task_path": NOTHING, "every": 60, "timezone": "Mars/North"},
            {"name": "a", "task_path": "nowhere.nothing", "every": 60},
        ):
            assert operator.tried("/schedules", body) == 422, body
        assert not Schedule.objects.exists()

    def test_they_are_listed_by_name_and_state(self, operator):
        made()
        made("other", paused=True)
        assert [item["name"] for item in operator.read("/schedules")["items"]] == ["nightly", "other"]
        assert [item["name"] for item in operator.read("/schedules", state="paused")["items"]] == ["other"]


class TestAttention:
    def test_a_line_is_acknowledged_and_shown_again(self, operator):
        rows.ready()
        [line] = operator.read("/attention")["items"]
        assert (line["name"], line["severity"], line["url"]) == ("no-worker", "stopped", "/admin/ops/workers/")
        body = {"line": "no-worker", "lasts": "grows", "size": line["size"], "reason": "night shift knows"}
        assert operator.do("/attention/acknowledge", body) == {"changed": True}
        [line] = operator.read("/attention")["items"]
        assert line["acknowledged"]["reason"] == "night shift knows"
        assert Acknowledgement.objects.get().size == 1
        assert operator.do("/attention/withdraw", {"line": "no-worker"}) == {"changed": True}
        assert operator.read("/attention")["items"][0]["acknowledged"] is None

    def test_a_line_needs_a_reason_and_must_be_there(self, operator):
        rows.ready()
        assert operator.tried("/attention/acknowledge", {"line": "no-worker", "lasts": "1h"}) == 422
        body = {"line": "gone", "lasts": "1h", "reason": "x"}
        assert operator.tried("/attention/acknowledge", body) == 404
        assert not Acknowledgement.objects.exists()


def test_the_audit_is_read_page_by_page_and_by_target(operator):
    entries = [Intervention(actor="bob", source="page", action="cancel", target=f"task:{n}") for n in range(25)]
    Intervention.objects.bulk_create(entries)
    seen, cursor = [], {}
    while cursor is not None:
        found = operator.read("/audit", limit=10, actor="bob", **cursor)
        seen += [item["target"] for item in found["items"]]
        cursor = {"cursor": found["next"]} if found["next"] else None
    assert seen == [f"task:{n}" for n in reversed(range(25))]
    assert [item["target"] for item in operator.read("/audit", target="#7")["items"]] == ["task:7"]


def test_failures_are_grouped(operator):
    task = rows.failed()
    for number, at in ((1, 1), (2, 30)):
        task.attempts.create(
            number=number,
            worker_id="w1",
            outcome="failed",
            exception_class="shop.CardRefused",
            fingerprint="0123456789ab shop/tasks.py:charge",
            finished_at=timezone.now() - timedelta(hours=at),
        )
    [found] = operator.read("/failures")["items"]
    assert (found["key"], found["number"], found["place"]) == ("0123456789ab", 1, "shop/tasks.py:charge")
    assert sum(found["trend"]) == 1
    assert operator.read("/failures", since="3d")["items"][0]["number"] == 2
    assert operator.asked("/failures", since="soon") == 422


class TestLab:
    def test_runs_are_started_and_stopped(self, operator, settings):
        settings.ROWLOCK_LAB = True
        body = {"patterns": ["skip_locked_claim"], "vary": "workers", "values": [1, 2], "items": 20}
        first, second = operator.do("/lab/runs", body)["items"]
        assert [run["plan"]["workers"] for run in (first, second)] == [1, 2]
        assert operator.do(f"/lab/runs/{first['id']}/stop", {"reason": "enough"}) == {"changed": True}
        assert operator.do(f"/lab/runs/{first['id']}/stop") == {"changed": False}
        assert operator.read(f"/lab/runs/{first['id']}")["stop_requested_at"]
        assert [run["id"] for run in operator.read("/lab/runs")["items"]] == [second["id"], first["id"]]

    def test_it_is_off_where_the_page_is_off(self, operator, settings):
        settings.ROWLOCK_LAB = False
        assert operator.tried("/lab/runs", {"patterns": ["unsafe"]}) == 403
        assert not LabRun.objects.exists()

    def test_a_load_that_the_page_refuses_is_refused(self, operator, settings):
        settings.ROWLOCK_LAB = True
        for body in ({"patterns": ["none such"]}, {"workers": 99}, {"vary": "workers", "values": [1]}):
            assert operator.tried("/lab/runs", body) == 422, body
        assert not LabRun.objects.exists()


def test_those_who_may_only_see_change_nothing():
    viewer = Program("Viewers")
    made()
    rows.ready(queue_name="mail")
    Worker.objects.create(id="w1", hostname="host", pid=1, heartbeat_at=timezone.now())
    reason = {"reason": "x"}
    for path, body in (
        ("/queues/mail/pause", {}),
        ("/queues/mail/configure", {"recovery": "ask"}),
        ("/limits/k/configure", {"paused": True}),
        ("/workers/w1/stop", {}),
        ("/schedules", {"name": "a", "task_path": NOTHING, "every": 60}),
        ("/schedules/nightly/edit", {"missed": "once"}),
        ("/schedules/nightly/pause", {}),
        ("/schedules/nightly/run", {}),
        ("/schedules/nightly/delete", {}),
        ("/attention/acknowledge", {"line": "no-worker", "lasts": "1h", **reason}),
        ("/locks/named/a/release", {"fence": 1, **reason}),
        ("/locks/signals", {"pid": 1, "started": "2026-11-25T12:00:00Z", "action": "cancel"}),
        ("/lab/runs", {"patterns": ["unsafe"]}),
    ):
        assert viewer.tried(path, body) == 403, path
    assert audited() == []
