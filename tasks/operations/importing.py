"""Import what waits in another queue: schedules, waiting and scheduled tasks.

Each imported row leaves a mark in the audit, in the transaction that writes it: the intervention whose target is
`import:SOURCE:ID`. The audit is append-only and never pruned. So a row with a mark is passed over for ever, also when
its task has run and was deleted, and an interrupted import is resumed by starting it again. While the task is
unfinished, the same text is its unique key, unless it has one of its own. Rows of the source are never changed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from django.db import connection

from tasks.compat import InvalidTask
from tasks.exceptions import InvalidArguments, InvalidSchedule, ScheduleRefused
from tasks.framework import declaration
from tasks.framework.arguments import ENCODER, Call, check_key, encode_call, max_bytes
from tasks.framework.declaration import PRIORITIES, PostgresTask
from tasks.framework.enqueue import LOCK_KEYS
from tasks.importing.found import Found, Timing, Unfit, moment
from tasks.models import Schedule
from tasks.operations import schedules
from tasks.operations.enqueue import registered
from tasks.operations.verb import Progress, go_on
from tasks.support import audit, reading
from tasks.support.audit import Change, Who
from tasks.support.database import fetch, transaction
from tasks.support.durations import rate_of
from tasks.support.reading import Unreadable

CHUNK = 1000
LONGEST_ID = 200
NO_HANDLER = "no handler declares it"
CLAMPED = f"priority beyond {PRIORITIES[-1]}"  # it becomes the nearest one

# Two imports of one source take turns, chunk by chunk. The next statement sees what the other one has committed.
TAKE_TURNS = """
SELECT pg_advisory_xact_lock(hashtext('rowlock:import:' || current_schema()), hashtext(%(source)s::text))
"""
MARKED = "SELECT DISTINCT target FROM tasks_intervention WHERE target = ANY(%(marks)s::text[])"

# As in tasks/framework/keyed.py: ids follow the order of the rows, which are written in the order of their keys.
IMPORT = """
WITH given AS MATERIALIZED (
    SELECT nextval((SELECT pg_get_serial_sequence('tasks_task', 'id')::regclass)) AS id, given.*
    FROM jsonb_to_recordset(%(rows)s::jsonb) AS given (
        mark text, task_path text, queue_name text, priority smallint, call jsonb, run_after timestamptz,
        created_at timestamptz, max_attempts smallint, ordering_key text, unique_key text, unique_while text,
        concurrency_key text, concurrency_limit smallint, rate_key text, rate int, period_seconds int)
), inserted AS (
    INSERT INTO tasks_task (id, task_path, queue_name, priority, args, kwargs, created_at, run_after, max_attempts,
        ordering_key, unique_key, unique_while, concurrency_key, concurrency_limit, rate_key, rate, period_seconds)
    SELECT id, task_path, queue_name, priority, call -> 0, call -> 1, coalesce(created_at, statement_timestamp()),
        coalesce(run_after, created_at, statement_timestamp()), max_attempts,
        ordering_key, unique_key, unique_while, concurrency_key, concurrency_limit, rate_key, rate, period_seconds
    FROM given ORDER BY unique_key
    ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (
        (status = 'READY' AND unique_while IN ('q', 'a')) OR (status = 'PROCESSING' AND unique_while = 'a'))
    DO NOTHING
    RETURNING id
)
SELECT given.mark, inserted.id IS NOT NULL AS is_new FROM given LEFT JOIN inserted ON inserted.id = given.id
"""


class Left(NamedTuple):
    """Rows of a function that stay, by their reason."""

    function: str
    reason: str


@dataclass
class Tally:
    """The outcome of an import, or what it would be.

    `tasks` by function there, path here and queue. `schedules` by name. `left` has the rows that stay, `examples` one
    of each, and `options` what imported rows lose, by function and option. `already`: rows with a mark. `duplicates`:
    tasks whose own unique key another task has. Not `is_whole` if the caller stopped it.
    """

    tasks: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    schedules: list[str] = field(default_factory=list)
    left: Counter[Left] = field(default_factory=Counter)
    examples: dict[Left, str] = field(default_factory=dict)
    options: Counter[tuple[str, str]] = field(default_factory=Counter)
    already: int = 0
    duplicates: int = 0
    is_whole: bool = True

    @property
    def imported(self) -> int:
        return self.tasks.total() + len(self.schedules)

    def leave(self, found: Found, unfit: Unfit) -> None:
        left = Left(found.function, unfit.reason)
        self.left[left] += 1
        self.examples.setdefault(left, f"id {found.id}" + (f": {unfit.detail}" if unfit.detail else ""))


@dataclass
class Import:
    """One pass over a source; with `dry_run` it writes nothing.

    `mapping`: paths here by the names of functions there. A function without one keeps its name.
    """

    source: str
    read: Callable[[], Iterator[Found]]
    who: Who
    mapping: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    dry_run: bool = False
    tally: Tally = field(default_factory=Tally, init=False)
    _tasks: dict[tuple[object, ...], PostgresTask] = field(default_factory=dict, init=False)
    _problems: dict[tuple[object, ...], str | None] = field(default_factory=dict, init=False)
    _ordered: set[str] = field(default_factory=set, init=False)  # keys of this chunk whose order is that of commits
    _limit: int = field(default_factory=max_bytes, init=False)
    _is_recorded: bool = field(default=False, init=False)

    def perform(self, progress: Progress = go_on, total: int | None = None) -> Tally:
        """Import everything, chunk by chunk. Raises SourceMissing, and UnknownTask for a path of `mapping`."""
        for path in self.mapping.values():
            registered(path)
        seen = 0
        for chunk in _chunks(self.read()):
            with transaction(connection, rollback=self.dry_run):
                self._import(chunk)
            seen += len(chunk)
            if not progress(seen, total):
                self.tally.is_whole = False
                break
        return self.tally

    def _import(self, chunk: list[Found]) -> None:
        fetch(connection, TAKE_TURNS, {"source": self.source})
        marks = [reading.clipped(f"import:{self.source}:{found.id}", reading.LONGEST_TARGET) for found in chunk]
        marked = {row["target"] for row in fetch(connection, MARKED, {"marks": marks})}
        rows: list[str] = []
        self._ordered = set()
        before = self.tally.imported
        for found, mark in zip(chunk, marks, strict=True):
            if mark in marked:
                self.tally.already += 1
                continue
            try:
                if found.schedule:
                    self._add_schedule(found, found.schedule, mark)
                else:
                    rows.append(self._row(found, mark))
            except Unfit as unfit:
                self.tally.leave(found, unfit)
            else:
                marked.add(mark)  # a file may name an id twice
                self.tally.options.update((found.function, option) for option in _lost(found))
        if self.dry_run:
            return
        if rows:
            self._write(rows)
        if self.tally.imported > before and not self._is_recorded:
            self._record(f"import source={self.source}", [audit.table("tasks_task")])
            self._is_recorded = True

    def _write(self, rows: list[str]) -> None:
        if self._ordered:
            fetch(connection, LOCK_KEYS, {"keys": list(self._ordered)})
        written = fetch(connection, IMPORT, {"rows": f"[{','.join(rows)}]"})
        doubles = [row["mark"] for row in written if not row["is_new"]]
        self.tally.duplicates += len(doubles)
        self._record("enqueue", [row["mark"] for row in written if row["is_new"]])
        self._record("enqueue duplicate", doubles)

    def _record(self, action: str, targets: list[str]) -> None:
        if targets:
            audit.record(connection, self.who, action, map(Change, targets), self.reason)

    def _row(self, found: Found, mark: str) -> str:
        """The columns of the task, as a JSON object."""
        task, call = self._fit(found)
        try:
            columns = _columns(found, task, call, mark)
        except InvalidArguments as error:
            raise Unfit("its keys cannot be stored", error) from error
        if task.ordered_by_commit and columns["ordering_key"]:
            self._ordered.add(columns["ordering_key"])
        self.tally.tasks[found.function, task.module_path, task.queue_name] += 1
        return f'{ENCODER.encode(columns)[:-1]},"call":{call.json}}}'

    def _add_schedule(self, found: Found, timing: Timing, mark: str) -> None:
        task, call = self._fit(found)
        own = {"queue_name": found.queue_name, "priority": _nearest(found.priority)}
        settings = {**timing.settings, **own, "args": call.args, "kwargs": call.kwargs}
        try:
            with transaction(connection):
                row = schedules.add(timing.name, task.module_path, self.who, settings, reason=self.reason)
                _start(row, timing)
        except ScheduleRefused as error:
            raise Unfit("another schedule has its name", error) from error
        except InvalidSchedule as error:
            raise Unfit("its times have no counterpart", error) from error
        except (InvalidArguments, Unreadable) as error:
            raise Unfit("its name or arguments cannot be taken over", error) from error
        self._record("add schedule", [mark])
        self.tally.schedules.append(row.name)

    def _fit(self, found: Found) -> tuple[PostgresTask, Call]:
        """The task here and the call of a row. Raises Unfit."""
        if found.problem:
            raise Unfit(found.problem)
        if problem := reading.name_problem(found.id, LONGEST_ID):
            raise Unfit("its id cannot be kept", problem)
        task = self._task(found)
        if not isinstance(found.args, (list, tuple)) or not isinstance(found.kwargs, dict):
            raise Unfit("its arguments are no list and object")
        try:
            call = encode_call(found.args, found.kwargs, self._limit)
        except InvalidArguments as error:
            raise Unfit("its arguments cannot be stored as JSON", error) from error
        if not all(map(_is_time, (found.run_after, found.created_at))):
            raise Unfit("its time cannot be read")
        shape = (task.module_path, len(call.args), *sorted(call.kwargs))
        if shape not in self._problems:
            self._problems[shape] = declaration.call_problem(task, call.args, call.kwargs)
        if problem := self._problems[shape]:
            raise Unfit("its handler does not take its arguments", problem)
        return task, call

    def _task(self, found: Found) -> PostgresTask:
        path = self.mapping.get(found.function, found.function)
        options = (path, found.queue_name, _nearest(found.priority))
        if options not in self._tasks:
            self._tasks[options] = _declared(*options)
        return self._tasks[options]


def _nearest(priority: int | None) -> int | None:
    return None if priority is None else min(max(priority, PRIORITIES[0]), PRIORITIES[-1])


def _lost(found: Found) -> list[str]:
    """The options of an imported row that Rowlock has not."""
    return [*found.options, *([CLAMPED] if _nearest(found.priority) != found.priority else [])]


def _is_time(written: str | None) -> bool:
    """True for a time that a worker can read, and for none."""
    try:
        at = moment(written)
    except ValueError:
        return False
    return at is None or at.year in declaration.YEARS


def _declared(path: str, queue_name: str | None, priority: int | None) -> PostgresTask:
    """The task declared under the path, with this queue and priority. Raises Unfit."""
    task = declaration.find(path)
    if task is None or declaration.is_internal(path):
        raise Unfit(NO_HANDLER)
    try:
        task = task.using(queue_name=queue_name, priority=priority)
        reading.destination(task.queue_name)
    except (InvalidTask, Unreadable) as error:
        raise Unfit("its queue cannot be named so", error) from error
    return task


def _columns(found: Found, task: PostgresTask, call: Call, mark: str) -> dict[str, Any]:
    """The columns of a new task but its arguments. What the handler declares goes before what the source says."""
    keys = task.keys_of(call)
    theirs = check_key(found.unique_key, "unique key")
    lock = check_key(found.ordering_key, "ordering key")
    rate, period_seconds = rate_of(task.rate_limit or "") or (None, None)
    return {
        "mark": mark,
        "task_path": task.module_path,
        "queue_name": task.queue_name,
        "priority": int(task.priority),
        "run_after": found.run_after,
        "created_at": found.created_at,
        "max_attempts": task.attempts_allowed(),
        "ordering_key": keys.ordering or (None if task.is_limited else lock),
        "unique_key": keys.unique or theirs or mark,
        "unique_while": task.unique_while[0] if keys.unique else "q" if theirs else "a",
        "concurrency_key": keys.concurrency,
        "concurrency_limit": task.concurrency_limit if keys.concurrency else None,
        "rate_key": keys.rate,
        "rate": rate if keys.rate else None,
        "period_seconds": period_seconds if keys.rate else None,
    }


def _start(row: Schedule, timing: Timing) -> None:
    """Let the schedule go on from the next time that it has in the other queue."""
    if timing.first_at is None or row.ended_at is not None:
        return
    now = schedules.now()
    is_ahead = timing.first_at > now
    at = timing.first_at if is_ahead else row.recurrence.following_now(timing.first_at, now)
    if at is None or (row.ends_at is not None and at > row.ends_at):
        raise InvalidSchedule("it ends before its next time.")
    Schedule.objects.filter(pk=row.name).update(next_at=at)


def _chunks(found: Iterator[Found]) -> Iterator[list[Found]]:
    while chunk := list(islice(found, CHUNK)):
        yield chunk
