"""Why a task with a limit waits: for a slot, for its rate, or because its key is paused; and the settings behind it."""

import time

import pytest
from django.db import connection

from tasks.diagnosis import Verdict, decide, gather
from tasks.diagnosis.finding import Link
from tasks.models import Intervention, Limit, Queue, Task
from tasks.operations import set_limit, set_queue_limit
from tasks.support.audit import Who
from tasks.support.reading import Unreadable
from tests.tasks import rows
from tests.tasks.claiming import claim, claim_all, ids

pytestmark = pytest.mark.django_db
ANNA = Who("anna", "command")


def verdict(task_id):
    task = Task.objects.get(pk=task_id)
    return decide(task, gather([task]))


def test_a_task_that_waits_for_a_slot_names_who_has_them():
    made = rows.many(5, concurrency_key="k", concurrency_limit=2)
    claim_all()
    found = verdict(made[-1])
    assert found.verdict is Verdict.WAITING_FOR_SLOT
    assert f"All 2 slots of the key “k” are taken by #{made[0]}, #{made[1]}" in found.sentence
    assert found.sentence.endswith("3 tasks wait for it.")
    assert found.links == (Link("limit", "k"), Link("task", str(made[0])), Link("task", str(made[1])))


def test_the_operators_limit_counts_and_so_does_that_of_the_queue():
    first, second = rows.many(2, concurrency_key="k", concurrency_limit=5)
    claim(1)
    set_limit("k", ANNA, max_running=1)
    assert "The only slot" in verdict(second).sentence
    set_limit("k", ANNA, max_running=None)
    set_queue_limit("default", ANNA, max_running=1)
    found = verdict(second)
    assert (found.verdict, found.links[0]) == (Verdict.WAITING_FOR_SLOT, Link("queue", "default"))
    assert f"taken by #{first}" in found.sentence


def test_a_task_that_waits_for_its_rate_says_when_it_may_begin():
    made = rows.many(2, concurrency_key="r", rate_key="r", rate=2, period_seconds=3600)
    assert ids(claim()) == made[:1]
    found = verdict(made[1])
    assert found.verdict is Verdict.WAITING_FOR_RATE
    assert "The rate of the key “r”, 2/h, lets the next one begin at " in found.sentence
    assert "in 29 min" in found.sentence


def test_a_paused_key_is_said_to_be_paused_and_by_whom():
    [waiting] = rows.many(1, concurrency_key="k")
    set_limit("k", ANNA, paused=True)
    found = verdict(waiting)
    assert (found.verdict, found.command) == (Verdict.PAUSED, "python manage.py configure_limit k --resume")
    assert "The key “k” was paused by anna" in found.sentence


def test_a_task_that_may_begin_says_so():
    [waiting] = rows.many(1, concurrency_key="k")
    with rows.living_worker("w1", task_paths=[rows.NOTHING]):
        found = verdict(waiting)
    assert (found.verdict, found.links) == (Verdict.READY, (Link("limit", "k"),))


def test_a_verdict_beside_a_hundred_thousand_that_wait_counts_a_thousand():
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tasks_task (task_path, concurrency_key) SELECT 'a.b', 'k' FROM generate_series(1, 100000)"
        )
        cursor.execute("ANALYZE tasks_task")
    claim(1)
    task = Task.objects.ready().filter(concurrency_key="k").order_by("id").last()
    began = time.perf_counter()
    found = decide(task, gather([task]))
    assert found.verdict is Verdict.WAITING_FOR_SLOT
    assert "More than 1000 tasks wait" in found.sentence
    print(f"a verdict beside 100,000: {1000 * (time.perf_counter() - began):.0f} ms")


class TestSettings:
    def test_what_is_set_is_kept_and_audited_once(self):
        assert set_limit("k", ANNA, max_running=3, rate="100/m", reason="they asked")
        assert not set_limit("k", ANNA, max_running=3, rate="100/m")
        limit = Limit.objects.get()
        assert (limit.max_running, limit.rate, limit.period_seconds, limit.paused) == (3, 100, 60, False)
        assert set_limit("k", ANNA, paused=True)
        assert set_limit("k", ANNA, rate=None, paused=False)
        limit.refresh_from_db()
        assert (limit.max_running, limit.rate, limit.paused_at, limit.paused_by) == (3, None, None, "")
        actions = list(Intervention.objects.order_by("id").values_list("target", "action"))
        assert actions == [
            ("limit:k", "limit max_running=3 rate=100/m"),
            ("limit:k", "pause"),
            ("limit:k", "limit rate=none paused=false"),
        ]

    def test_a_dry_run_changes_nothing(self):
        assert set_queue_limit("q", ANNA, max_running=1, dry_run=True)
        assert not Queue.objects.exists()
        assert not Intervention.objects.exists()

    @pytest.mark.parametrize("values", [{"max_running": 0}, {"max_running": 10_001}, {"rate": "0/s"}, {"rate": "x"}])
    def test_what_cannot_be_meant_is_refused(self, values):
        with pytest.raises(Unreadable):
            set_limit("k", ANNA, **values)
