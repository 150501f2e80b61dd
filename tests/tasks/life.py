"""The life of tasks as a state machine: workers, operators and mishaps in any order, through the statements in use.

After every step the tables are what the model says: nothing lost, nobody's row touched, refusals recorded, and every
version above the one before it. One transaction holds an example and is rolled back.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from typing import TypeVar

import psycopg
from django.db import connection, transaction
from django.utils import timezone
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tasks import operations
from tasks.models import Worker
from tasks.operations import Settings
from tasks.operations.queues import SWITCHES
from tasks.queue import completion, presence, recovery, release
from tasks.queue.claim import Claimer
from tasks.queue.completion import Ending, Failure
from tasks.queue.strategies import claim
from tasks.support.audit import Who
from tasks.support.database import fetch
from tests.tasks.life_model import FINISHED, PROCESSING, Held, Model, Row
from tests.tasks.life_tables import ENQUEUE, FROM_OUTSIDE, POSTPONE, SAME_CHANCE, UNLOCK, look
from tests.tasks.rows import NOTHING

ANNA = Who("anna", "page")
NAMES, QUEUES, KEYS = ["w1", "w2"], ["a", "b"], [None, None, "k", "l"]
STRATEGIES = ["skip_locked", "skip_locked", "optimistic", "pessimistic"]
HOUR = timedelta(hours=1)
MOST_TASKS = REMEMBERED = 6

Step = Callable[[], None]
Value = TypeVar("Value")


class Life(RuleBasedStateMachine):
    """Two workers at a time, two queues, two keys; a worker that dies is followed by one with a new id.

    `crew`: the session that holds the presence of all workers. Each rule draws one of the steps that are possible now,
    so that few examples idle.
    """

    crew: psycopg.Connection

    def __init__(self) -> None:
        super().__init__()
        self.example = transaction.atomic()
        self.example.__enter__()
        self.model = Model()
        self.memory: dict[str, list[Held]] = {}
        self.ids: dict[str, str] = {}
        self.births = count(1)

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.example.__exit__(None, None, None)
        self.crew.execute("SELECT pg_advisory_unlock_all()")

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.data = data
        fetch(connection, SAME_CHANCE)
        for name in NAMES:
            self.be_born(name)
        self.decide_about_a_queue("a")  # whether it asks a person
        for _ in range(3):
            self.enqueue()

    @rule(data=st.data())
    def a_worker_acts(self, data: st.DataObject) -> None:
        has_claims = any(self.memory.values())
        self.take_one(
            data,
            (self.enqueue, len(self.model.tasks) < MOST_TASKS),
            *[(self.claim, self.model.tasks)] * 3,
            *[(self.end, has_claims)] * 3,
            (self.release, has_claims),
            (self.lose_an_answer, has_claims),
            (self.interrupt, has_claims),
        )

    @rule(data=st.data())
    def an_operator_acts(self, data: st.DataObject) -> None:
        self.take_one(
            data,
            *[(self.take_over, self.running())] * 3,
            *[(step, self.model.tasks) for step in (self.cancel, self.requeue, self.edit)] * 2,
            (self.decide_about_a_queue, True),
            (self.prune, sum(row.status in FINISHED for row in self.model.tasks.values()) > 2),
        )

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        is_lost = any(row.claimed_by in self.model.dead for row in self.model.tasks.values())
        self.take_one(
            data,
            *[(self.die, self.running() and not is_lost)] * 2,
            *[(self.recover, is_lost)] * 3,
            (self.write_from_outside, self.model.tasks),
        )

    def take_one(self, data: st.DataObject, *steps: tuple[Step, object]) -> None:
        self.data = data
        possible = [step for step, is_possible in steps if is_possible]
        if possible:
            self.draw(possible, "step")()

    def draw(self, values: Sequence[Value], label: str) -> Value:
        return self.data.draw(st.sampled_from(values), label)

    def running(self) -> list[int]:
        return sorted(row.id for row in self.model.tasks.values() if row.status == PROCESSING)

    def some_task(self) -> tuple[Row, int]:
        """A task, and a version that somebody saw of it: mostly the one it has."""
        row = self.model.tasks[self.draw(self.running() * 2 + sorted(self.model.tasks), "task")]
        return row, row.version - self.draw([0, 0, 0, 1], "versions behind")

    def some_held(self) -> Held:
        """Of any worker, the dead included: one that it still has, or one that is over without its knowledge."""
        pools = [pool for own in (True, False) if (pool := [one for one in self.held() if self.is_own(one) == own])]
        return self.draw(self.draw(pools, "claims"), "claim")

    def held(self) -> list[Held]:
        return [held for memory in self.memory.values() for held in memory]

    def is_own(self, held: Held) -> bool:
        row = self.model.tasks.get(held.id)
        return row is not None and (row.claimed_by, row.claimed_at) == (held.worker, held.claimed_at)

    def some_writer(self, held: Held) -> str:
        """Mostly who claimed it; another one has the right version and no right."""
        return self.draw([held.worker] * 4 + sorted(self.ids.values()), "writer")

    # Workers.

    def be_born(self, name: str) -> None:
        self.ids[name] = worker_id = f"{name} {next(self.births)}"
        Worker.objects.create(id=worker_id, hostname="host", pid=1, lease_seconds=3600)
        assert presence.take(self.crew, worker_id)
        assert presence.confirm(connection, worker_id)
        self.memory[worker_id] = []

    def enqueue(self) -> None:
        queue, key = self.draw(QUEUES, "queue"), self.draw(KEYS, "key")
        priority, is_due = self.draw([0, 0, 5], "priority"), self.draw([True, True, True, False], "is due")
        params = {"queue": queue, "key": key, "priority": priority, "max_attempts": self.draw([1, 2, 3], "attempts")}
        ahead = timedelta(0) if is_due else HOUR
        [row] = fetch(connection, ENQUEUE, {"path": NOTHING, "ahead": ahead, **params})
        self.model.tasks[row["id"]] = Row(row["id"], queue, key, priority, is_due, params["max_attempts"])

    def claim(self, by: str | None = None) -> None:
        queues = self.draw([None, None, ["a"], ["b", "a"]], "queues")
        strategy, limit = self.draw(STRATEGIES, "strategy"), self.draw([1, 2, 4], "limit")
        worker = by or self.ids[self.draw(NAMES, "worker")]
        taken = claim(connection, Claimer(worker, queues), limit, strategy)
        self.model.check_claim([made.id for made in taken], queues, 1 if strategy == "pessimistic" else limit)
        for made in taken:
            held = Held(made.id, worker, made.version, made.attempt, made.claimed_at())
            self.model.claim(held)
            self.memory[worker] = [*self.memory[worker], held][-REMEMBERED:]

    def end(self, late: Held | None = None) -> None:
        """One flush: of what a worker holds, of what it lost without knowing, or of what is another's."""
        first = late or self.some_held()
        writer = self.some_writer(first)
        others = [held for held in self.memory[first.worker] if held.id != first.id]
        is_retried_now = self.draw([True, False], "is retried now")
        failure = Failure("builtins.ValueError", "", 0.0 if is_retried_now else HOUR.total_seconds())
        kinds = self.draw([["complete"], ["fail"], ["complete", "fail"], ["fail", "complete"]], "kinds")
        endings = []
        for held, kind in zip([first, *others], kinds, strict=False):
            self.model.end(held, writer, kind, is_retried_now=is_retried_now)
            if self.draw([True, True, False], "hears the answer"):
                self.memory[held.worker].remove(held)
            told = failure if kind == "fail" else None
            endings.append(Ending(held.id, held.version, held.attempt, 0.0, 0.0, failure=told))
        completion.flush(connection, writer, endings)

    def release(self, late: Held | None = None) -> None:
        """What was given back may be given back again, late: by then it may run."""
        held = late or self.some_held()
        writer = self.some_writer(held)
        is_own = self.is_own(held) and writer == held.worker
        assert release.release(connection, writer, [(held.id, held.claimed_at)]) == is_own
        if not late:
            self.memory[held.worker].remove(held)
        if is_own:
            self.model.give_back([self.model.tasks[held.id]])
            if held.worker in self.ids.values() and self.draw([True, False], "is claimed again"):
                self.look()
                self.claim(held.worker)
                self.look()
                self.release(held)

    def lose_an_answer(self) -> None:
        """A worker never heard of one of its claims, and gives back what it does not know."""
        worker = self.draw(sorted(worker for worker, memory in self.memory.items() if memory), "worker")
        lost = self.draw(self.memory[worker], "lost")
        self.memory[worker] = [held for held in self.memory[worker] if held.id != lost.id]
        known = {held.id for held in self.memory[worker]}
        unknown = [row for row in self.model.tasks.values() if row.claimed_by == worker and row.id not in known]
        assert sorted(release.release_unknown(connection, worker, known)) == sorted(row.id for row in unknown)
        self.model.give_back(unknown)

    def interrupt(self) -> None:
        held = self.some_held()
        writer, is_cancelled = self.some_writer(held), self.draw([True, False], "is cancelled")
        release.interrupt(connection, writer, held.id, held.attempt, cancel=is_cancelled)
        self.model.interrupt(held, writer, cancel=is_cancelled)
        self.memory[held.worker].remove(held)

    # Mishaps.

    def die(self) -> None:
        """Its presence is gone; what it remembers it may still try to write."""
        name = self.draw([name for name in NAMES if self.memory[self.ids[name]]] or NAMES, "worker")
        self.model.dead.add(self.ids[name])
        self.crew.execute(UNLOCK, {"id": self.ids[name]})
        self.be_born(name)

    def recover(self) -> None:
        by = self.draw(["sweep", "supervisor", "person"], "by")
        if by == "person":
            operations.recover(ANNA)
        elif by == "supervisor":
            recovery.take_back(connection, sorted(self.model.dead))
        else:
            for _ in range(2):  # the first look only suspects
                recovery.sweep(connection)
        self.model.recover(include_asking=by == "person")
        for postponed in fetch(connection, POSTPONE):
            row = self.model.tasks[postponed["id"]]
            assert not row.is_due
            self.model.change(row)

    def write_from_outside(self) -> None:
        row, _ = self.some_task()
        connection.cursor().execute(self.draw(FROM_OUTSIDE, "statement"), [row.id])
        self.model.change(row)

    # Operators.

    def take_over(self) -> None:
        """A running task is taken from its worker, who may claim it again, and then writes what it knew before."""
        row = self.model.tasks[self.draw(self.running(), "task")]
        worker, late = row.claimed_by, [held for held in self.held() if held.id == row.id and self.is_own(held)]
        if row.queue in self.model.paused:
            self.decide_about_a_queue(row.queue)
        assert self.model.requeue(row, row.version, force=True) is None
        assert operations.requeue([row.id], ANNA, Settings(force=True, reason="stuck")).done == [row.id]
        self.look()
        self.claim(worker if worker in self.ids.values() and self.draw([True, True, False], "the same") else None)
        if late and self.draw([True, True, False], "late"):
            self.look()
            self.end(late[0])

    def cancel(self) -> None:
        row, seen = self.some_task()
        refused = self.model.cancel(row, seen)
        self.check(row, refused, operations.cancel([row.id], ANNA, versions={row.id: seen}))

    def requeue(self) -> None:
        row, seen = self.some_task()
        force = self.draw([True, False], "force")
        refused = self.model.requeue(row, seen, force=force)
        self.check(
            row, refused, operations.requeue([row.id], ANNA, Settings(force=force, reason="r"), versions={row.id: seen})
        )

    def edit(self) -> None:
        """Into another queue, of another priority, and due or not."""
        row, seen = self.some_task()
        queue, priority = self.draw(QUEUES, "queue"), self.draw([0, 5], "priority")
        is_due = self.draw([True, False], "is due")
        refused = self.model.edit(row, seen, queue=queue, priority=priority, is_due=is_due)
        changes = {"queue_name": queue, "priority": priority, "run_after": timezone.now() + (-HOUR if is_due else HOUR)}
        self.check(row, refused, operations.edit([row.id], ANNA, Settings(**changes), versions={row.id: seen}))

    @staticmethod
    def check(row: Row, refused: str | None, result: operations.Result) -> None:
        codes = {task_id: str(refusal.code) for task_id, refusal in result.refused.items()}
        assert codes == ({row.id: refused} if refused else {})
        assert result.done + result.asked == ([] if refused else [row.id])

    def decide_about_a_queue(self, name: str = "") -> None:
        queue = name or self.draw(QUEUES, "queue")
        is_paused = not name and queue not in self.model.paused and self.draw([True, True, False], "is paused")
        is_asking = self.draw([True, False], "is asking")
        (operations.pause if is_paused else operations.resume)(queue, ANNA)
        SWITCHES["ask" if is_asking else "automatic"].change(queue, ANNA)
        self.model.decide(queue, is_paused=is_paused, is_asking=is_asking)

    def prune(self) -> None:
        assert operations.prune_tasks(timedelta(0), ANNA) == self.model.prune()

    @invariant()
    def look(self) -> None:
        look(connection, self.model)
