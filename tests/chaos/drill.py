"""A drill: a fleet of workers on one queue, killed and frozen at random while they work; `account` says to what end."""

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

import psutil

from tests.chaos.duties import ATTEMPTS, INCIDENTS, Duties
from tests.chaos.world import World
from tests.databases import QueueDatabase
from tests.ledger import Ledger
from tests.processes import Worker
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

KEYS = 20
KEYED_SHARE = 5  # every fifth task has an ordering key
VICTIMS = {"child": 12, "group": 6, "supervisor": 2, "everybody": 1}
CONVICTED = "SELECT count(*) FROM tasks_worker WHERE pid = ANY(%s) AND stop_reason = 'convicted'"


@dataclass(frozen=True)
class Plan:
    """How large a drill is. `seed` decides who is struck and how long each task takes.

    `freezes`: so often a child or a whole group is stopped until it has been taken for dead, and then let go on.
    `outages`: so many of the kills come together with an outage of the database. `pace`: so many times as long as
    usual takes each task.
    """

    seed: int
    tasks: int = 2000
    kills: int = 20
    freezes: int = 0
    supervisors: int = 3
    outages: int = 0
    pace: float = 1.0


@dataclass(frozen=True)
class Strike:
    """One SIGKILL or SIGSTOP: when, what (one of VICTIMS, or `frozen …`), and the worker processes that it hit."""

    at: datetime
    victim: str
    pids: frozenset[int]


@dataclass(frozen=True)
class Outage:
    """A time in which nobody could write."""

    began: datetime
    ended: datetime


@dataclass
class Drill:
    """One run of a plan. `start` starts the supervisor of this place in the fleet, `disturb` makes an outage."""

    plan: Plan
    database: QueueDatabase
    ledger: Ledger
    duties: Duties
    start: Callable[[int], Worker]
    disturb: Callable[[random.Random], None] | None = None
    world: World | None = None
    strikes: list[Strike] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    fleet: list[Worker] = field(default_factory=list)
    launched: list[Worker] = field(default_factory=list)
    seconds: float = 0.0

    def run(self) -> None:
        """From the first task to the end of the last worker."""
        self.duties.prepare(self.database, self.plan.seed)
        self.enqueue()
        chance = random.Random(self.plan.seed)
        began = time.monotonic()
        self.fleet = [self.launch(place) for place in range(self.plan.supervisors)]
        blows = [self.kill] * self.plan.kills + [self.freeze] * self.plan.freezes
        chance.shuffle(blows)
        incidents = range(0, len(blows), max(1, len(blows) // INCIDENTS))
        disturbed = chance.sample(range(len(blows)), self.plan.outages)
        for number, strike in enumerate(blows):
            self.wait_until_done((number + 1) * self.plan.tasks // (len(blows) + 1))
            if number in incidents:
                self.duties.make_incident(self.database)
            strike(chance)
            if number in disturbed:
                self.make_outage(chance)
        self.duties.finish(self.database)
        self.database.wait_until_finished(seconds=120)
        self.seconds = time.monotonic() - began
        self.stop()
        if self.world:
            self.world.finish(self.database)

    def launch(self, place: int) -> Worker:
        self.launched.append(self.start(place))
        return self.launched[-1]

    def enqueue(self) -> None:
        """Tasks in an order that mixes keyed and free ones with all others."""
        with self.database.connection.transaction():
            for number in range(self.plan.tasks):
                is_other = self.world and self.world.enqueue(self.database, number)
                if not (is_other or self.duties.enqueue(self.database, number)):
                    key = None if number % KEYED_SHARE else f"key {number // KEYED_SHARE % KEYS}"
                    self.database.enqueue(
                        handlers.vary, self.plan.seed, self.plan.pace, ordering_key=key, max_attempts=ATTEMPTS
                    )

    def wait_until_done(self, count: int) -> None:
        """By progress and not by the clock, so that every strike meets work."""

        def enough_is_done() -> bool:
            return self.database.statuses()["COMPLETED"] >= count

        wait_until(enough_is_done, seconds=120)

    def kill(self, chance: random.Random) -> None:
        """One SIGKILL; a supervisor that died is replaced, as a service manager would."""
        victim = chance.choices(list(VICTIMS), weights=VICTIMS.values())[0]
        if victim == "everybody":
            self.kill_everybody()
            return
        worker, children = wait_until(lambda: self.stopped_with_children(chance.choice(self.fleet)))
        doomed = {"child": [chance.choice(children)], "group": children, "supervisor": []}[victim]
        self.strikes.append(Strike(self.ledger.now(), victim, frozenset(doomed)))
        if victim == "child":
            os.kill(doomed[0], signal.SIGKILL)
            # Else a freeze that follows at once may choose the dying one, whom nobody convicts: it has crashed.
            wait_until(lambda: doomed[0] not in worker.children(), every=0.002)
            worker.send(signal.SIGCONT)
            return
        if victim == "group":
            worker.send_all(signal.SIGKILL)
        else:
            worker.send(signal.SIGKILL)  # its children finish what they run and end by themselves
        place = self.fleet.index(worker)
        self.fleet[place] = self.launch(place)

    def kill_everybody(self) -> None:
        """The whole fleet at once: whoever comes next finds nobody to take over from."""
        for worker in self.fleet:
            stand_still(worker)
        doomed = [pid for worker in self.fleet for pid in worker.children()]
        self.strikes.append(Strike(self.ledger.now(), "everybody", frozenset(doomed)))
        for worker in self.fleet:
            worker.send_all(signal.SIGKILL)
        self.fleet = [self.launch(place) for place in range(len(self.fleet))]

    def freeze(self, chance: random.Random) -> None:
        """One SIGSTOP of a child or of a whole group, which goes on once its lease has ended and it was convicted."""
        worker, children = wait_until(lambda: self.stopped_with_children(chance.choice(self.fleet)))
        victim = chance.choice(("child", "group"))
        doomed = children if victim == "group" else [chance.choice(children)]
        # Only who has registered can be convicted.
        doomed = [pid for pid in doomed if self.is_registered(pid)]
        self.strikes.append(Strike(self.ledger.now(), f"frozen {victim}", frozenset(doomed)))
        for pid in doomed:
            os.kill(pid, signal.SIGSTOP)
        if victim == "child":
            worker.send(signal.SIGCONT)

        def all_are_convicted() -> bool:
            return self.database.value(CONVICTED, doomed) == len(doomed)

        wait_until(all_are_convicted, seconds=60)
        for pid in doomed:
            os.kill(pid, signal.SIGCONT)
        worker.send(signal.SIGCONT)

    def is_registered(self, pid: int) -> bool:
        return self.database.value("SELECT count(*) FROM tasks_worker WHERE pid = %s AND stopped_at IS NULL", pid) > 0

    @staticmethod
    def stopped_with_children(worker: Worker) -> tuple[Worker, list[int]] | None:
        """Stop a supervisor, so that it neither reaps nor starts a child; one without children goes on."""
        stand_still(worker)
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


def stand_still(worker: Worker) -> None:
    """Stop a supervisor; once it stands still, it has no child that it did not have before."""
    worker.send(signal.SIGSTOP)
    supervisor = psutil.Process(worker.pid)
    wait_until(lambda: supervisor.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE), every=0.002)
