"""Who of a run waits for whom: on its page while it goes on, and kept with it afterwards."""

import json

import pytest
from django.contrib.auth.models import Permission

from dashboard.lab import measure, pages, runner
from dashboard.lab.worker import Plan
from dashboard.models import LabRun
from tasks.models import Task
from tests.dashboard.lab.stage import staged
from tests.dashboard.scenes import LOCK_ORDER
from tests.people import client_of, person
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
EFFECT = "INSERT INTO lab_ledger (kind, worker, item, ended) VALUES ('effect', 0, 1, now()), ('effect', 1, 1, NULL)"


def test_the_page_of_a_run_draws_the_lock_tree_of_its_own_sessions_with_the_rows():
    with staged() as stage:
        stage.holding("psql of somebody", "SELECT 1")
        stage.holding(stage.worker(0), LOCK_ORDER, [1])
        stage.waiting(stage.worker(1), LOCK_ORDER, [1])
        stage.control.execute(EFFECT)
        client = client_of("Lock administrators")
        page = client.get(f"/admin/ops/lab/{stage.run.pk}/").text
        tree = page.partition('id="lock-tree"')[2].partition("</section>")[0]
        assert tree.index("worker 0") < tree.index("worker 1")
        assert "holds order 1" in " ".join(tree.split())
        assert "for order 1 (transactionid" in tree
        assert "psql of somebody" not in page
        assert "/orders/order/1/" not in page  # the live order of that number is another one
        assert "terminate-backend" not in page
        counters = pages.look().counters
        assert (counters["effects"], counters["duplicates"]) == (2, 1)
        assert "2 items in" not in page
        assert "1 items in" in page


def test_who_may_not_see_sessions_sees_the_counters_alone():
    with staged() as stage:
        client = client_of()
        person().user_permissions.add(Permission.objects.get(codename="view_labrun"))
        page = client.get(f"/admin/ops/lab/{stage.run.pk}/")
        assert (page.status_code, "Waiting now" in page.text, "lock-tree" in page.text) == (200, True, False)


def test_the_page_is_whole_when_the_run_has_just_ended():
    with staged() as stage:
        LabRun.objects.update(schema="lab_000000000000")
        assert pages.look() is None
        page = client_of("Viewers").get(f"/admin/ops/lab/{stage.run.pk}/")
        assert (page.status_code, "lock-tree" in page.text) == (200, False)
        assert Task.objects.count() == 1  # and the request sees the live tables again


def test_a_sampler_keeps_who_waited_for_whom_how_long():
    with staged() as stage:
        sampler = measure.WaitSampler(stage.control, f"rowlock:lab:{stage.run.schema}")
        assert sampler.sample() == 0
        stage.holding(stage.worker(0), LOCK_ORDER, [1])
        stage.waiting(stage.worker(1), LOCK_ORDER, [1])
        assert [sampler.sample() for _ in range(3)] == [1, 1, 1]
        [wait] = sampler.kept()
        assert (wait.who, wait.behind, wait.target) == ("worker 1", "worker 0", "order 1")
        assert wait.seconds > 0
        assert measure.Wait(*json.loads(json.dumps(wait))).target == "order 1"


def test_the_waits_of_a_run_stay_on_its_page():
    run = LabRun.objects.create(
        batch="b", pattern="double_checked", plan=Plan("double_checked").as_dict(), actor="anna", state="finished",
        waits=[[1, [0], "order 7", 0.1, 0.25], [2, [0, None], "order 7", 0.2, 0.5], [-1, [2], "order 9", 0.3, 0.1]],
    )  # fmt: skip
    page = " ".join(client_of("Viewers").get(f"/admin/ops/lab/{run.pk}/").text.split())
    assert "Most of the time went to order 7: 750 ms in all." in page
    assert page.index("worker 0, another session") < page.index("250 ms") < page.index("outsider 1")


def test_the_waits_of_a_real_run_are_kept_with_it():
    def somebody_was_seen_waiting() -> runner.Outcome | None:
        found = runner.run(Plan("account_pessimistic", workers=3, items=6, work_ms=100))
        return found if found.waits else None

    outcome = wait_until(somebody_was_seen_waiting, seconds=120)
    assert {wait.target for wait in outcome.waits} <= {"account 1", "orders_account"}
    assert {wait.worker for wait in outcome.waits} <= {0, 1, 2}
    assert outcome.result.blocked_samples >= len(outcome.waits)
