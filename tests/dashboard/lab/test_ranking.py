"""What a pattern costs when there is no work, where that is no matter of the machine; docs/lab.md has the speeds."""

from contextlib import closing

import pytest

from dashboard.lab import runner
from dashboard.lab.forkserver import Forkserver
from dashboard.lab.worker import Plan

pytestmark = pytest.mark.django_db(transaction=True)
RANKED = ("skip_locked_claim", "skip_locked_held", "advisory_lock")


def test_claims_in_batches_before_one_by_one_before_a_named_lock_for_each_item():
    """By statements for each item."""
    with closing(Forkserver()) as crew:
        runs = {name: runner.run(Plan(name, workers=2, items=40, work_ms=0), forkserver=crew).result for name in RANKED}
    assert all(run.is_clean for run in runs.values()), runs
    batched, one_by_one, named = (runs[name] for name in RANKED)
    assert batched.queries_per_item * 2 < min(one_by_one.queries_per_item, named.queries_per_item)
    assert batched.lost_races == one_by_one.lost_races == 0
