"""A drill: a fleet of workers on one queue, killed at random while they work, and the account of what that did.

The oracle is the ledger of effects. An effect may run twice only when the worker that ran it first was killed, and then
only if it was still running or had ended so shortly before that no flush can have written it.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby, pairwise

from tests.databases import QueueDatabase
from tests.ledger import Effect, Ledger
from tests.processes import Worker
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

STALE_SECONDS = 1.0  # how long after an outage a worker may need until it writes again
KEYS = 20
KEYED_SHARE = 5  # every fifth task has an ordering key
# A completion waits 50 ms at most until the child looks, which it does every 50 ms; the rest is for a busy machine.
UNFLUSHED_SECONDS = 0.25


@dataclass(frozen=True)
class Plan:
    """How large a drill is. `seed` decides who is killed and how long each task takes."""

    seed: int
    tasks: int = 2000
    kills: int = 20
    supervisors: int = 2
    children: int = 2
    outages: int = 0  # so many of the kills come together with an outage of the database


@dataclass(frozen=True)
class Kill:
    """One SIGKILL: when, whom (`child`, `group`, `supervisor`), and the worker processes that died of it."""

    at: datetime
    victim: str
    pids: frozenset[int]


@dataclass(frozen=True)
class Outage:
    """A time in which nobody could write."""

    began: datetime
    ended: datetime


@dataclass
class Summary:
    """What a drill found; printed as JSON."""

    seed: int
    tasks: int
    kills: dict[str, int]
    seconds: float
    repeated: int = 0
    repeated_per_kill: float = 0.0
    oldest_repeat_ms: float = 0.0
    unexcused: list[int] = field(default_factory=list)
    falsely_convicted: list[int] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    refused: int = 0


@dataclass
class Drill:
    """One run of a plan. `start` starts a supervisor with `plan.children` children, `disturb` makes an outage."""

    plan: Plan
    database: QueueDatabase
    ledger: Ledger
    start: Callable[[], Worker]
    disturb: Callable[[random.Random], None] | None = None
    kills: list[Kill] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    fleet: list[Worker] = field(default_factory=list)

    def run(self) -> Summary:
        self.enqueue()
        chance = random.Random(self.plan.seed)
        began = time.monotonic()
        self.fleet = [self.start() for _ in range(self.plan.supervisors)]
        disturbed = chance.sample(range(1, self.plan.kills + 1), self.plan.outages)
        for number in range(1, self.plan.kills + 1):
            self.wait_until_done(number * self.plan.tasks // (self.plan.kills + 1))
            self.kill(chance)
            if number in disturbed:
                self.make_outage(chance)
        self.database.wait_until_finished(seconds=120)
        seconds = time.monotonic() - began
        self.stop()
        return self.account(seconds)

    def enqueue(self) -> None:
        """Tasks in an order that mixes keyed and free ones."""
        with self.database.connection.transaction():
            for number in range(self.plan.tasks):
                key = None if number % KEYED_SHARE else f"key {number // KEYED_SHARE % KEYS}"
                self.database.enqueue(handlers.vary, self.plan.seed, ordering_key=key)

    def wait_until_done(self, count: int) -> None:
        """By progress and not by the clock, so that every kill meets work."""

        def enough_is_done() -> bool:
            return self.database.statuses()["COMPLETED"] >= count

        wait_until(enough_is_done, seconds=60)

    def kill(self, chance: random.Random) -> None:
        """One SIGKILL; a supervisor that died is replaced, as a service manager would."""
        victim = chance.choices(("child", "group", "supervisor"), weights=(12, 6, 2))[0]
        worker, children = wait_until(lambda: self.stopped_with_children(chance.choice(self.fleet)))
        doomed = {"child": [chance.choice(children)], "group": children, "supervisor": []}[victim]
        self.kills.append(Kill(self.ledger.now(), victim, frozenset(doomed)))
        if victim == "child":
            os.kill(doomed[0], signal.SIGKILL)
            worker.send(signal.SIGCONT)
            return
        if victim == "group":
            worker.send_all(signal.SIGKILL)
        else:
            worker.send(signal.SIGKILL)  # its children finish what they run and end by themselves
        self.fleet[self.fleet.index(worker)] = self.start()

    @staticmethod
    def stopped_with_children(worker: Worker) -> tuple[Worker, list[int]] | None:
        """Stop a supervisor, so that it neither reaps nor starts a child; one without children goes on."""
        worker.send(signal.SIGSTOP)
        if children := worker.children():
            return worker, children
        worker.send(signal.SIGCONT)
        return None

    def stop(self) -> None:
        for worker in self.fleet:
            # The last one may be starting yet, and would die of the signal.
            wait_until(lambda worker=worker: worker.children() or "another starts in" in worker.log())
            status = worker.stop()
            assert status == 0, f"a worker ended with {status}:\n{worker.log()}"

    def make_outage(self, chance: random.Random) -> None:
        began = self.ledger.now()
        self.disturb(chance)
        self.outages.append(Outage(began, self.ledger.now()))

    # The account.

    def account(self, seconds: float) -> Summary:
        effects = self.ledger.effects()
        repeated = list(self.repeated(effects))
        ages = [age for effect in repeated if (age := self.age_at_kill(effect)) is not None]
        return Summary(
            seed=self.plan.seed,
            tasks=self.plan.tasks,
            kills=dict(Counter(kill.victim for kill in self.kills)),
            seconds=round(seconds, 1),
            repeated=len(repeated),
            repeated_per_kill=round(len(repeated) / max(1, len(self.kills)), 2),
            oldest_repeat_ms=round(1000 * max(ages, default=0.0), 1),
            unexcused=[effect.task_id for effect in repeated if not self.is_excused(effect)],
            falsely_convicted=self.falsely_convicted(),
            out_of_order=list(self.out_of_order(effects)),
            statuses=dict(self.database.statuses()),
            outcomes=dict(self.database.rows("SELECT outcome, count(*) FROM tasks_attempt GROUP BY outcome")),
            refused=self.database.value("SELECT count(*) FROM tasks_refusedwrite"),
        )

    @staticmethod
    def repeated(effects: list[Effect]) -> Iterator[Effect]:
        """Every effect of a task but its last."""
        by_task = sorted(effects, key=lambda effect: (effect.task_id, effect.number))
        for _, runs in groupby(by_task, key=lambda effect: effect.task_id):
            yield from list(runs)[:-1]

    def killed_at(self, effect: Effect) -> datetime | None:
        return next((kill.at for kill in self.kills if effect.pid in kill.pids), None)

    def age_at_kill(self, effect: Effect) -> float | None:
        """Seconds from its end to its worker's death: 0 when it was still running, None when nobody was killed."""
        died = self.killed_at(effect)
        if died is None:
            return None
        return max(0.0, (died - effect.ended).total_seconds()) if effect.ended else 0.0

    def is_excused(self, effect: Effect) -> bool:
        age = self.age_at_kill(effect)
        return age is not None and (age <= UNFLUSHED_SECONDS or self.could_not_be_written(effect))

    def could_not_be_written(self, effect: Effect) -> bool:
        """Whether the database was away at some time between its end and its worker's death."""
        late = timedelta(seconds=STALE_SECONDS)
        died = self.killed_at(effect)
        return any(outage.began <= died and effect.ended <= outage.ended + late for outage in self.outages)

    def falsely_convicted(self) -> list[int]:
        """Process ids that a sweep took for dead and that nobody had killed."""
        killed = {pid for kill in self.kills for pid in kill.pids}
        convicted = self.database.rows("SELECT pid FROM tasks_worker WHERE stop_reason = 'convicted'")
        return sorted({row.pid for row in convicted} - killed)

    def out_of_order(self, effects: list[Effect]) -> Iterator[str]:
        """Ordering keys of which two ran at once, or a later task before an earlier one."""
        keys = dict(self.database.rows("SELECT id, ordering_key FROM tasks_task WHERE ordering_key IS NOT NULL"))
        keyed = sorted((effect for effect in effects if effect.task_id in keys), key=lambda effect: effect.began)
        for key in sorted(set(keys.values())):
            runs = [effect for effect in keyed if keys[effect.task_id] == key]
            if any(self.collide(earlier, later) for earlier, later in pairwise(runs)):
                yield key

    def collide(self, earlier: Effect, later: Effect) -> bool:
        ended = earlier.ended or self.killed_at(earlier)
        return ended is None or later.began < ended or later.task_id < earlier.task_id
