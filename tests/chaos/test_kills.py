"""The headline: workers are killed again and again while they work, and nothing is lost, stuck or repeated in vain."""

import pytest

from tests.chaos.drill import Plan
from tests.chaos.runs import RUNS, assert_nothing_was_lost, fresh_seed, run


def test_twenty_kills_lose_nothing_and_repeat_only_what_was_not_yet_flushed(database, ledger, start_worker):
    plan = Plan(seed=20)
    assert_nothing_was_lost(plan, run(plan, database, ledger, start_worker))


@pytest.mark.chaos
@pytest.mark.parametrize("number", RUNS)
def test_a_hundred_kills(database, ledger, start_worker, number):
    plan = Plan(seed=fresh_seed(), tasks=10_000, kills=100, supervisors=3)
    assert_nothing_was_lost(plan, run(plan, database, ledger, start_worker))
