"""The order in which the patterns stand when there is no work: what is far apart in docs/lab.md is so in each run."""

import pytest

from dashboard.lab import nursery, runner
from dashboard.lab.plan import Plan

pytestmark = pytest.mark.django_db(transaction=True)
RANKED = ("skip_locked_claim", "skip_locked_held", "double_checked", "advisory_lock")


def test_claims_in_batches_before_one_by_one_before_a_named_lock_for_each_item():
    """By statements and lost races, which no busy machine changes, and by speed where it is a factor of ten or more."""
    with nursery.opened() as crew:
        runs = {name: runner.run(Plan(name, workers=2, items=40, work_ms=0), crew=crew) for name in RANKED}
    assert all(run.is_clean for run in runs.values()), runs
    batched, one_by_one, double_checked, named = (runs[name] for name in RANKED)
    assert batched.queries_per_item * 2 < min(one_by_one.queries_per_item, named.queries_per_item)
    assert batched.lost_races == one_by_one.lost_races == 0
    # Each process begins at another place of the candidates; those with named locks all walk them from the first on.
    assert double_checked.lost_races * 1.5 < named.lost_races
    assert batched.items_per_second > named.items_per_second
