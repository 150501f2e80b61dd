"""Patterns over a table of tasks: the worker's two claims, and three forms from the article (reference D).

`optimistic_complete` completes without a claim, to show what that loses. No worker uses it. It reads a READY row with
its version, does the work, then completes the row if its version is still that one. Others may read the same row
meanwhile: the work is done twice and one result is lost. Any write to the row in between loses the result too.

A limit of tasks at once is kept in three ways: slots in a unique index, a counter, and an advisory lock per slot. All
three claim and complete tasks in the same way and share the recovery of dead workers: only the slot differs.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from uuid import uuid4

from django.db import connection, transaction
from django.utils.translation import gettext_lazy as _

from dashboard.lab.patterns.pattern import SLOTS, TASKS, Pattern
from dashboard.lab.worker import Worker
from tasks.models import Task
from tasks.queue import presence, recovery, strategies
from tasks.queue.claim import Claim, Claimer
from tasks.queue.completion import Ending, flush
from tasks.support.database import Connection, fetch

READ = """
SELECT id, version FROM tasks_task
WHERE status = 'READY' AND ordering_key IS NULL AND concurrency_key IS NULL
  AND queue_name = %(queue)s::text AND run_after <= statement_timestamp()
ORDER BY priority DESC, run_after, id LIMIT 1
"""

COMPLETE = """
UPDATE tasks_task SET status = 'COMPLETED', version = version + 1, attempt = attempt + 1,
    return_value = %(return_value)s::jsonb, finished_at = statement_timestamp()
WHERE id = %(id)s::bigint AND version = %(version)s::int
RETURNING id
"""


def read_next(connection: Connection, queue: str) -> tuple[int, int] | None:
    """The next due task of the queue as (id, version), held by nobody; None when there is none."""
    rows = fetch(connection, READ, {"queue": queue})
    return (rows[0]["id"], rows[0]["version"]) if rows else None


def complete_if_unchanged(connection: Connection, task_id: int, version: int, return_value: str | None = None) -> bool:
    """Complete the task if nobody has touched it since it was read; False when the work was done for nothing."""
    params = {"id": task_id, "version": version, "return_value": return_value}
    return bool(fetch(connection, COMPLETE, params))


QUEUE = "lab"
BATCH = 50
PAUSE_SECONDS = 0.02

# No heartbeat: a lease longer than any run leaves convictions to presence.
REGISTER = """
INSERT INTO tasks_worker (id, hostname, pid, strategy, queues, task_paths, lease_seconds)
VALUES (%(id)s, 'lab', pg_backend_pid(), %(strategy)s, ARRAY['lab'], ARRAY[]::text[], 3600)
"""

# The article's form in one transaction: the lock spans the work, and a kill leaves the row unchanged.
LOCK_NEXT = """
SELECT id FROM tasks_task
WHERE status = 'READY' AND ordering_key IS NULL AND concurrency_key IS NULL AND queue_name = 'lab'
ORDER BY priority DESC, run_after, id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
COMPLETE_LOCKED = """
UPDATE tasks_task SET status = 'COMPLETED', attempt = attempt + 1, finished_at = statement_timestamp() WHERE id = %(id)s
"""

# As printed in the article: it compares the version and sets it to the same value, which changes nothing. With our
# trigger the second writer finds another version; the judged part of a run has no trigger. It also claims a task that
# the first worker has completed by then, so that completion is undone.
SWAP_AS_PRINTED = """
UPDATE tasks_task SET status = 'PROCESSING', attempt = 1, version = %(version)s::int,
    claimed_by = %(worker_id)s::text, started_at = statement_timestamp(), finished_at = NULL
WHERE id = %(id)s::bigint AND version = %(version)s::int
RETURNING id
"""
READ_AS_PRINTED = """
SELECT id, version FROM tasks_task WHERE status = 'READY' AND queue_name = 'lab' ORDER BY run_after, id
LIMIT %(limit)s::int
"""
COMPLETE_AS_PRINTED = """
UPDATE tasks_task SET status = 'COMPLETED', claimed_by = NULL, finished_at = statement_timestamp() WHERE id = %(id)s
"""
WITHOUT_TRIGGERS = "ALTER TABLE tasks_task DISABLE TRIGGER USER"


def skip_locked_claim(worker: Worker) -> None:
    claim_and_flush(worker, "skip_locked")


def optimistic_claim(worker: Worker) -> None:
    claim_and_flush(worker, "optimistic")


Slot = Callable[[], AbstractContextManager[bool]]


def no_slot() -> AbstractContextManager[bool]:
    return nullcontext(True)


def claim_and_flush(worker: Worker, strategy: str, *, batch: int = BATCH, slot: Slot = no_slot) -> None:
    """Work as a worker does: presence, claims in batches, completions in one write, and recovery of dead workers.

    `slot` is held from before each claim until its tasks are completed; it says whether there was a free one.
    """
    claimer = Claimer(_register(strategy), [QUEUE])
    swept = time.monotonic()
    while _is_unfinished():
        with slot() as is_free:
            claimed = strategies.claim(connection, claimer, batch, strategy) if is_free else []
            worker.ledger.lost_races = claimer.lost_races
            if claimed:
                _flush_at_most_50_ms(claimer.worker_id, claimed, worker.work)
        if claimed:
            continue
        if time.monotonic() < swept + presence.SECOND_LOOK_SECONDS:
            time.sleep(PAUSE_SECONDS)
        else:
            recovery.sweep(connection)
            swept = time.monotonic()


def _flush_at_most_50_ms(worker_id: str, claimed: list[Claim], work: Callable[[int], None]) -> None:
    endings: list[Ending] = []
    due = time.monotonic() + 0.05
    for claim in claimed:
        started = time.monotonic()
        work(claim.id)
        endings.append(Ending(claim.id, claim.version, claim.attempt, started, time.monotonic()))
        if time.monotonic() > due or claim is claimed[-1]:
            flush(connection, worker_id, endings)
            endings, due = [], time.monotonic() + 0.05


def _register(strategy: str) -> str:
    worker_id = f"lab{uuid4().hex[:12]}"
    presence.take(connection, worker_id)
    with connection.cursor() as cursor:
        cursor.execute(REGISTER, {"id": worker_id, "strategy": strategy})
    presence.confirm(connection, worker_id)
    return worker_id


def skip_locked_held(worker: Worker) -> None:
    while True:
        with transaction.atomic():
            rows = fetch(connection, LOCK_NEXT)
            for row in rows:
                worker.work(row["id"])
                with connection.cursor() as cursor:
                    cursor.execute(COMPLETE_LOCKED, row)
        if not rows and not _is_unfinished():
            return


def optimistic_complete(worker: Worker) -> None:
    while (found := read_next(connection, QUEUE)) is not None:
        task_id, version = found
        worker.work(task_id)
        if not complete_if_unchanged(connection, task_id, version):
            worker.ledger.note("lost", task_id)


def optimistic_claim_as_printed(worker: Worker) -> None:
    worker_id = _register("optimistic")
    while rows := fetch(connection, READ_AS_PRINTED, {"limit": 2 * worker.plan.workers}):
        for row in rows:
            if fetch(connection, SWAP_AS_PRINTED, {**row, "worker_id": worker_id}):
                worker.work(row["id"])
                with connection.cursor() as cursor:
                    cursor.execute(COMPLETE_AS_PRINTED, row)
                break
            worker.ledger.lost_races += 1


def _is_unfinished() -> bool:
    return Task.objects.filter(status__in=["READY", "PROCESSING"]).exists()


FILL_LIMITED = """
INSERT INTO tasks_task (task_path, queue_name, max_attempts, concurrency_key, concurrency_limit)
SELECT 'dashboard.lab.work', 'lab', 100, 'lab', %(slots)s FROM generate_series(1, %(items)s)
"""
TAKEN = "SELECT count(*)::int FROM tasks_task WHERE concurrency_key = 'lab' AND status = 'PROCESSING'"

CREATE_COUNTER = "CREATE TABLE lab_counter AS SELECT 0 AS running"
COUNT_UP = "UPDATE lab_counter SET running = running + 1 WHERE running < %(slots)s::int RETURNING running"
COUNT_DOWN = "UPDATE lab_counter SET running = running - 1"
COUNTED = "SELECT running FROM lab_counter"

LOCK_SLOT = """
SELECT slot FROM generate_series(1, %(slots)s::int) AS slot
WHERE pg_try_advisory_lock(hashtext('rowlock:lab:slot:' || current_schema()), slot) LIMIT 1
"""
UNLOCK_SLOT = "SELECT pg_advisory_unlock(hashtext('rowlock:lab:slot:' || current_schema()), %(slot)s::int)"
LOCKED = """
SELECT count(*)::int FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 2 AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND classid::bigint = hashtext('rowlock:lab:slot:' || current_schema())::bigint & 4294967295
"""


@contextmanager
def counted() -> Iterator[bool]:
    """Count up before the work and down after it; False while the counter is at the limit."""
    is_mine = bool(fetch(connection, COUNT_UP, {"slots": SLOTS}))
    try:
        yield is_mine
    finally:
        if is_mine:
            with connection.cursor() as cursor:
                cursor.execute(COUNT_DOWN)


@contextmanager
def locked() -> Iterator[bool]:
    """Hold the advisory lock of a free slot; False while others hold them all."""
    slots = fetch(connection, LOCK_SLOT, {"slots": SLOTS})
    try:
        yield bool(slots)
    finally:
        for slot in slots:
            fetch(connection, UNLOCK_SLOT, slot)


def slots_by_index(worker: Worker) -> None:
    claim_and_flush(worker, "skip_locked", batch=1)


def slots_by_counter(worker: Worker) -> None:
    claim_and_flush(worker, "skip_locked", batch=1, slot=counted)


def slots_by_advisory_lock(worker: Worker) -> None:
    claim_and_flush(worker, "skip_locked", batch=1, slot=locked)


tasks_pattern = partial(Pattern, rows=TASKS)
LIMITED = replace(TASKS, name="slots", fill=FILL_LIMITED, source="limits of concurrency, as queues keep them")
UNLIMITED = replace(LIMITED, fill=TASKS.fill)
slots_pattern = partial(Pattern, rows=UNLIMITED)
PATTERNS = (
    tasks_pattern(
        skip_locked_held,
        promise=_("Each task is locked through its work; a killed worker's task is free at once."),
        weakness=_("A transaction as long as the work; attempts are not counted, so poison tasks never stop."),
        use=_("Short work whose effects are in the same database."),
    ),
    tasks_pattern(
        skip_locked_claim,
        code=(claim_and_flush, strategies.claim_locked, flush),
        repeats=BATCH,
        promise=_("One claim for a batch, one write for its completions; the dead are recovered. Our default."),
        weakness=_("A killed worker's batch waits for its recovery, about a second."),
        use=_("A queue."),
    ),
    tasks_pattern(
        optimistic_claim,
        code=(claim_and_flush, strategies.claim_optimistic, flush),
        repeats=BATCH,
        promise=_("Compare-and-swap by version: no row stays locked, connections are free early."),
        weakness=_("Lost races cost a statement each; a dead worker's tasks need recovery."),
        use=_("Rows that other programs change too, with short locks."),
    ),
    tasks_pattern(
        optimistic_complete,
        code=(read_next, complete_if_unchanged),
        is_safe=False,
        promise=_("No task is completed twice."),
        weakness=_("The work is repeated, and its result is lost if anybody touched the row."),
        use=_("Never with effects. It is here to show what is lost."),
    ),
    tasks_pattern(
        optimistic_claim_as_printed,
        is_safe=False,
        promise=_("None: the version is set to the value that it has."),
        weakness=_("Two workers claim one row. With our version trigger only one of them does: see the second part."),
        use=_("Never. It is here because articles print it."),
        guard=_("the version trigger"),
        guard_off=WITHOUT_TRIGGERS,
    ),
    slots_pattern(
        slots_by_index,
        rows=LIMITED,
        code=(claim_and_flush, strategies.claim_locked),
        taken=TAKEN,
        promise=_("A slot is a value of the row, unique among running tasks: it is free when the row is. Our limits."),
        weakness=_("A killed worker's slot waits for its recovery, about a second."),
        use=_("At most so many at once of a key or a queue."),
    ),
    slots_pattern(
        slots_by_counter,
        needs=CREATE_COUNTER,
        code=(claim_and_flush, counted),
        taken=COUNTED,
        is_safe=False,
        promise=_("At most so many at once, as long as nobody dies between counting up and counting down."),
        weakness=_("Each kill leaks a slot for ever; once all have leaked, nothing runs. One hot row for everybody."),
        use=_("Never for slots. It is here because it is the usual first attempt."),
    ),
    slots_pattern(
        slots_by_advisory_lock,
        code=(claim_and_flush, locked),
        taken=LOCKED,
        is_safe=False,
        promise=_("At most so many sessions at once; PostgreSQL frees a killed worker's slot with its session."),
        weakness=_(
            "It limits sessions, not work: work that goes on after its session has ended no longer counts. A "
            "transaction-pooling proxy gives the lock to strangers."
        ),
        use=_("Limits that may be exceeded for a moment, without a proxy."),
    ),
)
