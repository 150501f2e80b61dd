"""A limit of tasks at once, kept in three ways: slots in a unique index, a counter, and an advisory lock per slot.

All three claim and complete tasks in the same way and share the recovery of dead workers: only the slot differs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from django.db import connection
from django.utils.translation import gettext_lazy as _

from dashboard.lab.patterns.pattern import SLOTS, TASKS, Pattern
from dashboard.lab.patterns.queue import claim_and_flush
from dashboard.lab.worker import Worker
from tasks.queue import strategies
from tasks.support.database import fetch

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


LIMITED = replace(TASKS, name="slots", fill=FILL_LIMITED, source="limits of concurrency, as queues keep them")
UNLIMITED = replace(LIMITED, fill=TASKS.fill)
slots_pattern = partial(Pattern, rows=UNLIMITED)
PATTERNS = (
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
