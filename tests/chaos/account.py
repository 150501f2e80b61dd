"""The account of a drill: what its oracles say about each task.

The first oracle is the ledger of effects. An effect may run twice only when the worker that ran it first was struck,
and then only if it was still running or had ended so shortly before that no flush can have written it.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby, pairwise

from tests.chaos.drill import Drill
from tests.ledger import Effect

NUMBER = "SELECT count(*) FROM tasks_task WHERE queue_name = 'default'"  # those that send alerts have another one
STATUSES = "SELECT status, count(*) FROM tasks_task WHERE queue_name = 'default' GROUP BY status"
# `busy`: a frozen worker kept the row of an account locked.
OUTCOMES = """
SELECT CASE WHEN exception_class = 'tasks.exceptions.Busy' THEN 'busy' ELSE outcome END, count(*)
FROM tasks_attempt JOIN tasks_task AS task ON task.id = task_id WHERE task.queue_name = 'default' GROUP BY 1
"""
BUSY = """
SELECT attempt.task_id, attempt.number, worker.pid
FROM tasks_attempt AS attempt JOIN tasks_worker AS worker ON worker.id = attempt.worker_id
WHERE attempt.exception_class = 'tasks.exceptions.Busy'
"""
STALE_SECONDS = 1.0  # how long after an outage a worker may need until it writes again
# A completion waits 50 ms at most until the child looks, which it does every 50 ms; the rest is for a busy machine.
UNFLUSHED_SECONDS = 0.25

ENDED = re.compile(r"worker (\w+) cannot start")
ABANDONED = """
SELECT attempt.task_id, attempt.worker_id, worker.pid, attempt.finished_at AS at
FROM tasks_attempt AS attempt LEFT JOIN tasks_worker AS worker ON worker.id = attempt.worker_id
WHERE attempt.outcome = 'abandoned'
"""


@dataclass
class Summary:
    """What a drill found; printed as JSON. Lists name the tasks, process ids, keys or locks that are wrong.

    `recovery_ms`: for each attempt that ended with a struck worker, from the strike until its row was READY again.
    `permitted`: effects repeated because their worker was struck before their completion can have been written; `late`:
    they had ended so long before that on a machine with time to spare it would have been; `forbidden`: nobody was
    struck. `outside`: what the mail server, the accounts, the locks, the schedule, the alerts and the limits say.
    """

    seed: int
    tasks: int
    strikes: dict[str, int]
    outages: int
    workers: int
    seconds: float
    recovery_ms: list[float] = field(default_factory=list)
    permitted: int = 0
    oldest_repeat_ms: float = 0.0
    late: list[int] = field(default_factory=list)
    forbidden: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    falsely_recovered: list[int] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    outside: dict[str, int] = field(default_factory=dict)


@dataclass
class Account:
    """The questions to the oracles of one drill that has ended."""

    drill: Drill

    def summary(self) -> Summary:
        drill, rows = self.drill, self.drill.database.rows
        effects = drill.ledger.effects()
        busy = {(row.task_id, row.number, row.pid) for row in rows(BUSY)}
        repeated = list(self.repeated(effects, busy))
        forbidden = [effect.task_id for effect in repeated if self.struck_at(effect.pid) is None]
        late = [effect.task_id for effect in repeated if self.struck_at(effect.pid) and not self.is_excused(effect)]
        ages = [age for effect in repeated if (age := self.age_at_strike(effect)) is not None]
        return Summary(
            seed=drill.plan.seed,
            tasks=drill.database.value(NUMBER),
            strikes=dict(Counter(strike.victim for strike in drill.strikes)),
            outages=len(drill.outages),
            workers=drill.database.value("SELECT count(*) FROM tasks_worker"),
            seconds=round(drill.seconds, 1),
            recovery_ms=self.recovery_ms(),
            permitted=len(repeated) - len(forbidden) - len(late),
            oldest_repeat_ms=round(1000 * max(ages, default=0.0), 1),
            late=late,
            forbidden=forbidden,
            lost=self.lost(effects),
            falsely_recovered=self.falsely_recovered(),
            out_of_order=list(self.out_of_order(effects)),
            statuses=dict(rows(STATUSES)),
            outcomes=dict(rows(OUTCOMES)),
            refused=drill.database.value("SELECT count(*) FROM tasks_refusedwrite"),
            outside={
                **(drill.world.account(drill.ledger, self.struck_at) if drill.world else {}),
                **drill.duties.account(effects, self.struck_at),
            },
        )

    def struck_at(self, pid: int) -> datetime | None:
        """When this worker process was first killed or frozen; None when nobody touched it."""
        return next((strike.at for strike in self.drill.strikes if pid in strike.pids), None)

    def recovery_ms(self) -> list[float]:
        """By the database's clock; all servers of a drill run on one machine."""
        found = ((self.struck_at(row.pid), row.at) for row in self.drill.database.rows(ABANDONED))
        return sorted(round((at - struck).total_seconds() * 1000, 1) for struck, at in found if struck)

    def lost(self, effects: list[Effect]) -> list[int]:
        """Tasks that are not completed, or of which no effect has come to its end."""
        done = {effect.task_id for effect in effects if effect.ended}
        rows = self.drill.database.rows("SELECT id, status FROM tasks_task WHERE queue_name = 'default' ORDER BY id")
        return [row.id for row in rows if row.status != "COMPLETED" or row.id not in done]

    @staticmethod
    def repeated(effects: list[Effect], busy: Collection[tuple[int, int, int]] = ()) -> Iterator[Effect]:
        """Every effect of a task but its last, and but those whose attempt was written as `busy`."""
        by_task = sorted(effects, key=lambda effect: (effect.task_id, effect.number))
        for _, runs in groupby(by_task, key=lambda effect: effect.task_id):
            for effect in list(runs)[:-1]:
                if (effect.task_id, effect.attempt, effect.pid) not in busy:
                    yield effect

    def age_at_strike(self, effect: Effect) -> float | None:
        """Seconds from its end to its worker's strike: 0 when it was still running, None when nobody was struck."""
        struck = self.struck_at(effect.pid)
        if struck is None:
            return None
        return max(0.0, (struck - effect.ended).total_seconds()) if effect.ended else 0.0

    def is_excused(self, effect: Effect) -> bool:
        age = self.age_at_strike(effect)
        return age is not None and (age <= UNFLUSHED_SECONDS or self.could_not_be_written(effect))

    def could_not_be_written(self, effect: Effect) -> bool:
        """Whether the database was away at some time between its end and its worker's strike."""
        late = timedelta(seconds=STALE_SECONDS)
        struck = self.struck_at(effect.pid)
        return any(outage.began <= struck and effect.ended <= outage.ended + late for outage in self.drill.outages)

    def falsely_recovered(self) -> list[int]:
        """Process ids of workers that lived, and that were convicted or whose tasks were taken back."""
        convicted = self.drill.database.rows("SELECT id, pid FROM tasks_worker WHERE stop_reason = 'convicted'")
        dead = self.ended_by_themselves()
        taken_from = {row.pid for row in convicted if row.id not in dead}
        taken_from |= {row.pid for row in self.drill.database.rows(ABANDONED) if row.worker_id not in dead}
        return sorted(pid or 0 for pid in taken_from if self.struck_at(pid) is None)

    def ended_by_themselves(self) -> set[str]:
        """Ids of workers that lost the database in the moment of their start, and said so as they ended."""
        return {found for worker in self.drill.launched for found in ENDED.findall(worker.log())}

    def out_of_order(self, effects: list[Effect]) -> Iterator[str]:
        """Ordering keys of which two ran at once, or a later task before an earlier one."""
        rows = self.drill.database.rows("SELECT id, ordering_key FROM tasks_task WHERE ordering_key IS NOT NULL")
        keys = dict(rows)
        keyed = sorted((effect for effect in effects if effect.task_id in keys), key=lambda effect: effect.began)
        for key in sorted(set(keys.values())):
            runs = [effect for effect in keyed if keys[effect.task_id] == key]
            if any(self.collide(earlier, later) for earlier, later in pairwise(runs)):
                yield key

    def collide(self, earlier: Effect, later: Effect) -> bool:
        """What a frozen worker goes on with, once it is let go on, is not its task's any more."""
        ends = [moment for moment in (earlier.ended, self.struck_at(earlier.pid)) if moment]
        return not ends or later.began < min(ends) or later.task_id < earlier.task_id
