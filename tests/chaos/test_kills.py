"""The headline: workers are killed again and again while they work, and nothing is lost, stuck or repeated in vain."""

import pytest

from tests.chaos.drill import Plan
from tests.chaos.runs import FREEZES, KILLS, assert_nothing_was_lost, fresh_seed, run

LEASE_SECONDS = 3  # of who is frozen, so that it need not be waited for for long


def test_kills_and_a_freeze_lose_nothing_and_repeat_only_what_was_not_yet_flushed(
    database, ledger, duties, start_worker, world
):
    plan = Plan(seed=20, kills=12, freezes=1, tasks=1000)
    summary = run(plan, database, ledger, duties, start_worker, world=world, ROWLOCK_LEASE_SECONDS=LEASE_SECONDS)
    assert_nothing_was_lost(plan, summary)
    assert summary.late == [], "effects repeated that a flush should have saved"
    assert summary.recovery_ms, "nobody was struck while it worked"


@pytest.mark.chaos
def test_without_a_fault_nothing_is_repeated(database, ledger, duties, start_worker, world, report):
    plan = Plan(seed=fresh_seed(), tasks=6000, kills=0)
    summary = run(plan, database, ledger, duties, start_worker, world=world)
    report.note("calm", database, summary)
    assert_nothing_was_lost(plan, summary)
    assert summary.permitted == summary.refused == 0


@pytest.mark.chaos
@pytest.mark.parametrize("number", KILLS)
def test_a_hundred_kills(database, ledger, duties, start_worker, world, report, number):
    plan = Plan(seed=fresh_seed(), tasks=8000, kills=100)
    summary = run(plan, database, ledger, duties, start_worker, world=world)
    report.note("kills", database, summary)
    assert_nothing_was_lost(plan, summary)


@pytest.mark.chaos
@pytest.mark.parametrize("number", FREEZES)
def test_twenty_freezes_past_the_lease_and_twenty_kills(database, ledger, duties, start_worker, world, report, number):
    plan = Plan(seed=fresh_seed(), tasks=3000, kills=20, freezes=20, pace=10)
    summary = run(plan, database, ledger, duties, start_worker, world=world, ROWLOCK_LEASE_SECONDS=LEASE_SECONDS)
    report.note("freezes", database, summary)
    assert_nothing_was_lost(plan, summary)
