"""Running one drill in a test: its seed and its account printed, and what must be true of every account."""

import json
import os
import random

from tests.chaos.drill import Drill, Plan, Summary

RUNS = range(int(os.environ.get("CHAOS_RUNS", "3")))


def run(plan, database, ledger, start_worker, disturb=None, **variables) -> Summary:
    drill = Drill(plan, database, ledger, lambda: start_worker("--concurrency", plan.children, **variables), disturb)
    summary = drill.run()
    print(json.dumps(vars(summary)))
    return summary


def fresh_seed() -> int:
    """CHAOS_SEED repeats a run: its seed is in the printed account."""
    seed = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"seed {seed}")
    return seed


def assert_nothing_was_lost(plan: Plan, summary: Summary) -> None:
    assert sum(summary.kills.values()) == plan.kills
    assert summary.statuses == {"COMPLETED": plan.tasks}
    assert summary.unexcused == [], "effects repeated that a flush should have saved"
    assert summary.falsely_convicted == []
    assert summary.out_of_order == []
    assert set(summary.outcomes) <= {"abandoned"}
