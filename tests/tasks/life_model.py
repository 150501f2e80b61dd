"""What a task's life ought to be, said again in Python: the model that the property test compares the tables with."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

READY, PROCESSING, COMPLETED = "READY", "PROCESSING", "COMPLETED"
FAILED, CANCELLED = "FAILED", "CANCELLED"
FINISHED = (COMPLETED, FAILED, CANCELLED)
ALLOWANCE = 5  # attempts of a task that says nothing else, and of one that is requeued


@dataclass
class Row:
    """One task. `is_due`: it may run now; `claimed_at` names the claim that holds it."""

    id: int
    queue: str
    key: str | None
    priority: int
    is_due: bool
    max_attempts: int
    run_after: int = 0  # microseconds since 1970, as the table has it
    version: int = 1
    status: str = READY
    attempt: int = 0
    claimed_by: str | None = None
    claimed_at: datetime | None = None
    finished_by: str | None = None
    is_cancelling: bool = False

    def compare(self, found: Mapping[str, Any], *, is_touched: bool) -> None:
        """Fails where the table says something else; its version has grown when the row was touched, and only then."""
        is_finished = self.status in FINISHED
        assert (found["finished_at"] is not None) == is_finished
        asked = {
            "status": self.status,
            "attempt": self.attempt,
            "max_attempts": self.max_attempts,
            "claimed_by": self.claimed_by,
            "finished_by": self.finished_by,
            "queue_name": self.queue,
            "priority": self.priority,
            "ordering_key": self.key,
            **({} if is_finished else {"is_cancelling": self.is_cancelling}),
            **({"is_due": self.is_due} if self.status == READY else {}),
        }
        assert {name: found[name] for name in asked} == asked
        before, self.version, self.run_after = self.version, found["version"], found["run_after"]
        assert self.version > before if is_touched else self.version == before, f"version of {self} after {before}"


@dataclass(frozen=True)
class Held:
    """A claim as its worker remembers it, whatever has become of the task since."""

    id: int
    worker: str
    version: int
    attempt: int
    claimed_at: datetime


def is_last_attempt(row: Row) -> bool:
    """Whether a claim of this READY task spends its last attempt."""
    return row.attempt + 1 >= row.max_attempts


class Model:
    """All tasks, and what every step ought to leave behind."""

    def __init__(self) -> None:
        self.tasks: dict[int, Row] = {}
        self.paused: set[str] = set()
        self.asking: set[str] = set()
        self.dead: set[str] = set()
        self.refused: list[list[Any]] = []  # task, worker, version expected, version found, intent
        self.attempts: list[list[Any]] = []  # task, number, worker, outcome
        self.ended = 0
        self.touched: set[int] = set()

    def change(self, row: Row, **values: Any) -> None:
        """The row takes these values; its version must have grown when the tables are looked at."""
        for name, value in values.items():
            setattr(row, name, value)
        self.touched.add(row.id)

    def leave(self, row: Row, status: str, **values: Any) -> None:
        """Nobody holds the row any more."""
        self.change(row, status=status, claimed_by=None, claimed_at=None, **values)

    def note(self, row: Row, outcome: str) -> None:
        self.attempts.append([row.id, row.attempt, row.claimed_by, outcome])

    # The line.

    def due(self, queues: Sequence[str] | None) -> list[Row]:
        """What a claim may take: no paused queue, and of each key its first unfinished task, while none of it runs."""
        return [
            row
            for row in self.tasks.values()
            if row.status == READY
            and row.is_due
            and row.queue not in self.paused
            and (queues is None or row.queue in queues)
            and (row.key is None or self.is_head(row))
        ]

    def is_head(self, row: Row) -> bool:
        others = [other for other in self.tasks.values() if other.key == row.key and other.id != row.id]
        return not any(other.status == PROCESSING or (other.status == READY and other.id < row.id) for other in others)

    def check_claim(self, taken: Sequence[int], queues: Sequence[str] | None, limit: int) -> None:
        """So many as there are, the highest priorities, each queue's in the order of `run_after` and id."""
        due = self.due(queues)
        rows = [self.tasks[id] for id in taken]
        assert all(row in due for row in rows), f"{taken} of {sorted(row.id for row in due)}"
        line = sorted(due, key=lambda row: (-row.priority, row.run_after, row.id))
        if len(rows) != min(limit, len(due)):
            assert self.is_cut_short(rows, line, limit), f"{taken} of {sorted(row.id for row in due)}, at most {limit}"
        assert len(rows) == 1 or not any(is_last_attempt(row) for row in rows)
        assert [row.priority for row in rows] == [row.priority for row in line[: len(rows)]]
        for queue in {row.queue for row in rows}:
            mine = [row.id for row in rows if row.queue == queue]
            assert mine == [row.id for row in line if row.queue == queue][: len(mine)]

    @staticmethod
    def is_cut_short(rows: Sequence[Row], line: Sequence[Row], limit: int) -> bool:
        """Fewer than there are, for a task on its last attempt is claimed alone: it was taken, or may be the next."""
        if not rows or len(rows) > limit:
            return False
        rest = [row for row in line if row not in rows]
        heads = {row.queue: row for row in reversed(rest) if row.priority == rest[0].priority}
        return is_last_attempt(rows[0]) or any(is_last_attempt(head) for head in heads.values())

    # What workers do.

    def claim(self, held: Held) -> None:
        values = {"attempt": held.attempt, "claimed_by": held.worker, "claimed_at": held.claimed_at}
        row = self.tasks[held.id]
        assert held.attempt == row.attempt + 1
        self.change(row, status=PROCESSING, is_cancelling=False, **values)

    def end(self, held: Held, writer: str, kind: str, *, is_retried_now: bool) -> None:
        """Complete or fail: written while it is this very claim of the writer's, else refused and recorded."""
        row = self.tasks.get(held.id)
        is_same = row is not None and row.attempt == held.attempt
        if row and is_same and row.claimed_by == writer:
            self.ended += 1
            if kind == "complete":
                self.leave(row, COMPLETED, finished_by=writer, is_cancelling=False)
            else:
                self.fail(row, is_retried_now=is_retried_now)
        elif not (row and is_same and row.finished_by == writer):  # what it has completed before is no refusal
            self.refused.append([held.id, writer, held.version, row.version if row else None, kind])

    def fail(self, row: Row, *, is_retried_now: bool) -> None:
        self.note(row, "failed")
        if row.is_cancelling:
            self.leave(row, CANCELLED)
        elif row.attempt < row.max_attempts:
            self.leave(row, READY, is_due=is_retried_now)
        else:
            self.leave(row, FAILED)

    def give_back(self, rows: Iterable[Row]) -> None:
        """What never started: the attempt is given back."""
        for row in rows:
            self.leave(row, CANCELLED if row.is_cancelling else READY, attempt=row.attempt - 1)

    def interrupt(self, held: Held, writer: str, *, cancel: bool) -> None:
        row = self.tasks.get(held.id)
        if row and row.attempt == held.attempt and row.claimed_by == writer:
            self.note(row, "released")
            status = CANCELLED if cancel or row.is_cancelling else READY
            self.leave(row, status, max_attempts=row.max_attempts + 1)

    def recover(self, *, include_asking: bool) -> None:
        """What dead workers held; the first time it is due at once, again later."""
        for row in self.tasks.values():
            if row.claimed_by in self.dead and (include_asking or row.queue not in self.asking):
                self.note(row, "abandoned")
                if row.is_cancelling:
                    self.leave(row, CANCELLED)
                elif row.attempt < row.max_attempts:
                    self.leave(row, READY, is_due=row.attempt <= 1)
                else:
                    self.leave(row, FAILED)

    # What operators do; each gives the code of the refusal, or None.

    def cancel(self, row: Row, seen: int) -> str | None:
        if refused := self.moved_on(row, seen) or {COMPLETED: "completed", CANCELLED: "already"}.get(row.status):
            return refused
        if row.status == PROCESSING and row.claimed_by not in self.dead:
            if not row.is_cancelling:
                self.change(row, is_cancelling=True)
            return None
        if row.status == PROCESSING:
            self.note(row, "abandoned")
        self.leave(row, CANCELLED)
        return None

    def requeue(self, row: Row, seen: int, *, force: bool) -> str | None:
        if refused := self.moved_on(row, seen) or {READY: "ready", COMPLETED: "completed"}.get(row.status):
            return refused
        if row.status == PROCESSING and row.claimed_by not in self.dead and not force:
            return "live"
        if row.status == PROCESSING:
            self.note(row, "abandoned" if row.claimed_by in self.dead else "released")
        self.leave(row, READY, is_due=True, is_cancelling=False, max_attempts=row.attempt + ALLOWANCE)
        return None

    def edit(self, row: Row, seen: int, **values: Any) -> str | None:
        if refused := self.moved_on(row, seen) or {READY: None, PROCESSING: "held"}.get(row.status, "finished"):
            return refused
        self.change(row, **values)
        return None

    @staticmethod
    def moved_on(row: Row, seen: int) -> str | None:
        return None if seen == row.version else "changed"

    def decide(self, queue: str, *, is_paused: bool, is_asking: bool) -> None:
        (self.paused.add if is_paused else self.paused.discard)(queue)
        (self.asking.add if is_asking else self.asking.discard)(queue)

    def prune(self) -> int:
        """Every finished task and its attempts go."""
        gone = {row.id for row in self.tasks.values() if row.status in FINISHED}
        self.tasks = {id: row for id, row in self.tasks.items() if id not in gone}
        self.attempts = [attempt for attempt in self.attempts if attempt[0] not in gone]
        return len(gone)
