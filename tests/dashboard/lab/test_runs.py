"""Every pattern run for real: unsafe ones are caught, safe ones are clean, with kills too; nothing of a run stays."""

import threading

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection

from dashboard.lab import runner, schema
from dashboard.lab.measure import Result
from dashboard.lab.patterns import PATTERNS
from dashboard.lab.plan import Plan
from dashboard.lab.schema import LabRefused
from orders.models import Account, Order
from tasks.models import Task
from tests.commands import database_url
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)
SAFE = [name for name, pattern in PATTERNS.items() if pattern.is_safe]
LAB_SCHEMAS = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'lab%'"


def run(name: str, **numbers: int) -> Result:
    return runner.run(Plan(name, **{"workers": 3, "items": 24, "work_ms": 2, **numbers}))


def schemas_left() -> int:
    with connection.cursor() as cursor:
        cursor.execute(LAB_SCHEMAS)
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize("name", SAFE)
def test_a_safe_pattern_does_each_item_once_and_leaves_nothing(name):
    result = run(name)
    assert (result.processed, result.duplicates, result.lost_updates, result.lost_work) == (24, 0, 0, 0), result
    assert result.is_clean
    assert sum(result.share.values()) == 24
    assert schemas_left() == 0


@pytest.mark.parametrize("name", ["double_checked", "skip_locked_claim", "cache_lock", "account_pessimistic"])
def test_a_killed_worker_costs_a_safe_pattern_no_more_than_it_says(name):
    result = run(name, items=40, kill=2, work_ms=20, seed=3)
    assert result.kills == 2
    assert (result.processed, result.lost_updates, result.lost_work, result.stopped) == (40, 0, 0, ""), result
    assert result.duplicates <= result.may_repeat
    assert result.is_clean


@pytest.mark.parametrize("name", ["unsafe", "optimistic_complete", "optimistic_claim_as_printed"])
def test_what_lacks_its_guard_does_things_twice(name):
    result = run(name, work_ms=5)
    assert result.duplicates > 0, result
    assert not result.is_clean


def test_without_a_fence_results_of_work_are_lost():
    assert run("optimistic_complete", work_ms=5).lost_work > 0


@pytest.mark.parametrize(("name", "is_lossy"), [("account_unsafe", True), ("account_optimistic", False)])
def test_updates_are_lost_without_the_version_alone(name, is_lossy):
    result = run(name, work_ms=5)
    assert (result.lost_updates > 0) is is_lossy, result


def test_save_writes_stale_columns_back_over_those_of_others():
    assert run("unsafe", outside_lockers=2, work_ms=20).lost_updates > 0
    assert run("double_checked", outside_lockers=2, work_ms=20).lost_updates == 0


def test_a_naive_lock_of_a_dead_holder_blocks_for_ever():
    result = run("cache_lock_naive", kill=1, work_ms=50, seconds=20)
    assert result.stopped.startswith("nothing moved")
    assert not result.is_clean


def test_retries_repeat_the_slow_call_of_the_optimist_alone():
    optimist = run("account_optimistic", items=12, remote_ms=10)
    pessimist = run("account_pessimistic", items=12, remote_ms=10)
    assert optimist.retries > 0
    assert optimist.repeated_calls >= optimist.retries
    assert pessimist.repeated_calls == 0


def test_live_rows_are_not_touched():
    rows.ready(queue_name="lab")
    Order.objects.create(customer_email="a@example.test", shipped_at="2026-01-01T00:00Z")
    Account.objects.create(owner=User.objects.create_user("anna"))
    before = [list(model.objects.values()) for model in (Task, Order, Account)]
    for name in ("skip_locked_claim", "unsafe", "account_unsafe"):
        run(name, items=6, outside_lockers=1)
    assert [list(model.objects.values()) for model in (Task, Order, Account)] == before


def test_one_run_at_a_time():
    with psycopg.connect(database_url(), autocommit=True) as other:
        other.execute(runner.ONLY_RUN)
        with pytest.raises(LabRefused, match="Another run"):
            run("unsafe")


def test_a_run_that_is_stopped_says_so_and_leaves_nothing():
    result = runner.run(Plan("double_checked", workers=2, items=500, work_ms=20), progress=lambda effects: effects < 5)
    assert result.stopped == "stopped by a person"
    assert 5 <= result.processed < 500
    assert schemas_left() == 0


def test_what_a_crashed_run_left_is_swept_by_the_next():
    with psycopg.connect(database_url(), autocommit=True) as control:
        schema.create(control, schema.new_name())
    assert schemas_left() == 1
    run("idempotent_update", items=4)
    assert schemas_left() == 0


def test_the_blocked_are_sampled():
    threads = threading.active_count()
    assert run("account_pessimistic", items=12, work_ms=60).blocked_samples > 0
    assert threading.active_count() == threads
