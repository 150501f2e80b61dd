"""Running one drill in a test: its seed and its account printed and noted, and what must be true of every account."""

import json
import os
import random

from tests.chaos.account import Account, Summary
from tests.chaos.drill import Drill, Plan

RUNS = range(int(os.environ.get("CHAOS_RUNS", "3")))


def run(plan, database, ledger, start_worker, *, disturb=None, world=None, **variables) -> Summary:
    """Carry the plan out; `world`: what some of its tasks reach out to, `variables`: for the workers' environment."""
    if world:
        world.prepare(database, ledger)
        variables = {**world.variables, **variables}
    drill = Drill(
        plan, database, ledger, lambda: start_worker("--concurrency", plan.children, **variables), disturb, world
    )
    drill.run()
    summary = Account(drill).summary()
    print(json.dumps(vars(summary)))
    return summary


def fresh_seed() -> int:
    """CHAOS_SEED repeats a run: its seed is in the printed account."""
    seed = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"seed {seed}")
    return seed


def assert_nothing_was_lost(plan: Plan, summary: Summary) -> None:
    assert sum(summary.strikes.values()) == plan.kills + plan.freezes
    assert summary.statuses == {"COMPLETED": plan.tasks}
    assert summary.lost == []
    assert summary.forbidden == [], "effects repeated of workers that nobody had struck"
    assert summary.falsely_recovered == []
    assert summary.out_of_order == []
    assert set(summary.outcomes) <= {"abandoned"}
    wrong = {name: number for name, number in summary.outside.items() if number and name.endswith(WRONGS)}
    assert wrong == {}
    assert summary.outside.get("e-mails repeated", 0) <= sum(summary.strikes.values())


WRONGS = ("lost", "entries", "out of order")
