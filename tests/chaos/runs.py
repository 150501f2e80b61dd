"""Running one drill in a test: its seed and its account printed and noted, and what must be true of every account."""

import json
import os
import random

from tests.chaos.account import Account, Summary
from tests.chaos.drill import Drill, Plan
from tests.chaos.duties import KINDS, OPTIONS
from tests.processes import Worker

# By default, with the drills that each of them is: 119,000 tasks, 1,280 kills, 100 freezes and 60 outages.
RUNS = int(os.environ.get("CHAOS_RUNS", "10"))
KILLS, FREEZES, STORMS = (range(max(1, round(RUNS * share))) for share in (1, 0.5, 0.6))


def run(plan, database, ledger, duties, start_worker, *, disturb=None, world=None, **variables) -> Summary:
    """Carry the plan out; `world`: what some of its tasks reach out to, `variables`: for the workers' environment."""
    if world:
        world.prepare(database, ledger)
        variables = {**world.variables, **variables}

    def start(place: int) -> Worker:
        return start_worker(*OPTIONS, *KINDS[place % len(KINDS)], **variables)

    drill = Drill(plan, database, ledger, duties, start, disturb, world)
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
    assert summary.statuses == {"COMPLETED": summary.tasks}
    assert summary.tasks == plan.tasks + summary.outside["ticks"]
    assert summary.lost == []
    assert summary.forbidden == [], "effects repeated of workers that nobody had struck"
    assert summary.falsely_recovered == []
    assert summary.out_of_order == []
    assert set(summary.outcomes) <= ({"abandoned", "busy"} if plan.freezes else {"abandoned"})
    wrong = {name: number for name, number in summary.outside.items() if number and name.endswith(WRONGS)}
    assert wrong == {}
    assert summary.outside.get("e-mails repeated", 0) <= sum(summary.strikes.values())


WRONGS = ("lost", "entries", "out of order", "missed", "doubled", "over their limit", "over their rate")
