"""Take back the tasks of dead workers. Supervisors that have heard of no sweep for a moment try; one at a time does.

One statement lists the dead, and another takes their tasks. In a single statement, `claimed_by NOT IN (living)` took a
task from a worker that had just started (see `tasks.queue.presence`). `tasks.queue.set_aside` handles rows that the
database refuses.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from django.db import connection as default_connection

from tasks.queue import presence, set_aside, wakeup
from tasks.queue.presence import Life, WorkerState
from tasks.queue.set_aside import Writes
from tasks.support.database import Connection, execute, fetch

logger = logging.getLogger(__name__)
CHUNK = 1000
DRY_RUN_CHUNK = 100_000

ELECT = "SELECT pg_try_advisory_xact_lock(hashtext('rowlock:sweep'), hashtext(current_schema())) AS elected"

# CONFIRM_AGAIN, SUSPECT, TRUST and STOP skip locked rows: one locked row must not stop the sweep of all others.
# The first is only for workers whose lock was seen in the epoch of its token.
CONFIRM_AGAIN = """
WITH free AS MATERIALIZED (
    SELECT id FROM tasks_worker WHERE id = ANY(%(ids)s::text[]) AND stopped_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE tasks_worker AS worker SET presence_epoch = %(token)s::text FROM free WHERE worker.id = free.id
"""
SUSPECT = """
WITH free AS MATERIALIZED (
    SELECT id FROM tasks_worker WHERE id = ANY(%(ids)s::text[]) AND missing_since IS NULL AND stopped_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE tasks_worker AS worker SET missing_since = clock_timestamp() FROM free WHERE worker.id = free.id
"""
TRUST = """
WITH free AS MATERIALIZED (
    SELECT id FROM tasks_worker WHERE id = ANY(%(ids)s::text[]) AND missing_since IS NOT NULL
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE tasks_worker AS worker SET missing_since = NULL FROM free WHERE worker.id = free.id
"""
STOP = """
WITH free AS MATERIALIZED (
    SELECT id FROM tasks_worker WHERE id = ANY(%(ids)s::text[]) AND stopped_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE tasks_worker AS worker
SET stopped_at = clock_timestamp(), stop_reason = %(reason)s::text, current_task_id = NULL, running_ids = '{}'
FROM free WHERE worker.id = free.id
"""

# This checks again: a heartbeat or a returned presence since the first check acquits. A locked row is not convicted,
# because its worker is writing it now.
CONVICT = """
WITH convicted AS MATERIALIZED (
    SELECT worker.id FROM tasks_worker AS worker
    JOIN unnest(%(ids)s::text[], %(heartbeats)s::timestamptz[], %(missing)s::timestamptz[])
        AS seen (id, heartbeat_at, missing_since) ON seen.id = worker.id
    WHERE worker.stopped_at IS NULL AND worker.heartbeat_at = seen.heartbeat_at
      AND worker.missing_since IS NOT DISTINCT FROM seen.missing_since
    FOR NO KEY UPDATE OF worker SKIP LOCKED
)
UPDATE tasks_worker AS worker SET stopped_at = clock_timestamp(), stop_reason = 'convicted'
FROM convicted WHERE worker.id = convicted.id
RETURNING worker.id
"""

# A task is due at once after its first attempt, and ever later after the next ones. So a task that kills its workers
# cannot spin (F14). Locked rows and queues that ask a person are skipped before LIMIT counts, so they cannot starve the
# rest (F19).
TAKE_BACK = """
WITH lost AS MATERIALIZED (
    SELECT task.id, task.version, task.attempt, task.claimed_by, task.started_at, task.task_path, task.queue_name,
        task.attempt < task.max_attempts AND task.cancel_requested_at IS NULL AS has_attempts
    FROM tasks_task AS task
    WHERE task.status = 'PROCESSING' AND task.claimed_by = ANY(%(dead)s::text[])
      AND (%(task_ids)s::bigint[] IS NULL OR task.id = ANY(%(task_ids)s::bigint[]))
      AND task.id <> ALL(%(but)s::bigint[])
      AND (%(include_ask)s::boolean OR NOT EXISTS (
            SELECT FROM tasks_queue AS queue WHERE queue.name = task.queue_name AND queue.recovery = 'ask'))
    LIMIT %(limit)s::int FOR NO KEY UPDATE OF task SKIP LOCKED
), attempt AS (
    INSERT INTO tasks_attempt (task_id, number, worker_id, outcome, exception_class, started_at, queue_name,
        fingerprint)
    SELECT id, attempt, claimed_by, 'abandoned', 'tasks.exceptions.Abandoned', started_at, queue_name,
        left(encode(sha256(convert_to(concat_ws('|', task_path, 'tasks.exceptions.Abandoned', 'abandoned'), 'UTF8')),
            'hex'), 12) || ' abandoned'
    FROM lost
)
UPDATE tasks_task AS task SET
    status = CASE WHEN task.cancel_requested_at IS NOT NULL THEN 'CANCELLED'
                  WHEN lost.has_attempts THEN 'READY' ELSE 'FAILED' END,
    version = task.version + 1,
    claimed_by = NULL,
    run_after = CASE WHEN lost.has_attempts
                     THEN clock_timestamp() + make_interval(secs =>
                        CASE WHEN task.attempt <= 1 THEN 0 ELSE least(60, power(2, least(task.attempt, 10) - 2)) END)
                     ELSE task.run_after END,
    finished_at = CASE WHEN lost.has_attempts THEN NULL ELSE clock_timestamp() END
FROM lost WHERE task.id = lost.id
RETURNING task.id, task.status, task.queue_name, lost.claimed_by, lost.version AS version_before,
    task.version AS version_after
"""

# The rows that TAKE_BACK would take.
LOST = """
SELECT task.id FROM tasks_task AS task
WHERE task.status = 'PROCESSING' AND task.claimed_by = ANY(%(dead)s::text[])
  AND (%(task_ids)s::bigint[] IS NULL OR task.id = ANY(%(task_ids)s::bigint[]))
  AND task.id <> ALL(%(but)s::bigint[])
  AND (%(include_ask)s::boolean OR NOT EXISTS (
        SELECT FROM tasks_queue AS queue WHERE queue.name = task.queue_name AND queue.recovery = 'ask'))
LIMIT %(limit)s::int FOR NO KEY UPDATE OF task SKIP LOCKED
"""

Record = Callable[[Connection, list[dict[str, Any]]], None]
AskForIds = Callable[[Connection], list[str]]


@dataclass(frozen=True)
class Sweep:
    """The result of one sweep: the tasks taken back (RETURNING of TAKE_BACK), and workers by their ids."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)  # their tasks may be taken
    suspects: list[str] = field(default_factory=list)  # they need a second check
    waiting: list[WorkerState] = field(default_factory=list)  # silent, or lost in a restart: not convicted yet
    refused: dict[int, str] = field(default_factory=dict)  # tasks that the database refused, each with the error
    checked: list[str] = field(default_factory=list)  # all workers; empty: another sweeper was at work

    @property
    def requeued(self) -> list[int]:
        return self._with_status("READY")

    @property
    def failed(self) -> list[int]:
        return self._with_status("FAILED")

    @property
    def cancelled(self) -> list[int]:
        return self._with_status("CANCELLED")

    def _with_status(self, status: str) -> list[int]:
        return sorted(row["id"] for row in self.rows if row["status"] == status)


@dataclass(frozen=True)
class Scope:
    """The tasks of dead workers that may be taken back; `but`: tasks that the database refused."""

    limit: int
    include_ask: bool = False
    task_ids: list[int] | None = None
    but: Collection[int] = ()


def sweep(connection: Connection, *, limit: int = CHUNK, known_ids: AskForIds = presence.known_ids) -> Sweep:
    """Check every worker once and take back at most `limit` tasks of the dead; do nothing while another sweeper works.

    A worker whose presence is missing for the first time becomes a suspect: sweep again after
    `presence.SECOND_LOOK_SECONDS`.
    """

    def work(writes: Writes) -> Sweep:
        if not fetch(connection, ELECT)[0]["elected"]:
            return Sweep()
        tasks_aside, workers_aside, has_due = set_aside.standing(connection)
        judged = _judge(writes, _states(writes, known_ids, workers_aside))
        swept = _take_tasks(writes, judged, Scope(limit, but=tasks_aside))
        if has_due:
            set_aside.forget(writes)
        return swept

    return set_aside.attempt_in_transaction(connection, work)


def recover(
    connection: Connection | None = None,
    *,
    limit: int | None = None,
    include_ask: bool = True,
    task_ids: Iterable[int] | None = None,
    dry_run: bool = False,
    record: Record | None = None,
) -> Sweep:
    """Do both checks in one call, for commands and pages. It takes about 0.3 s when a worker has just died.

    With `task_ids`, only these tasks are taken back. `record` is called with the rows inside the transaction that takes
    them back, for the audit. A dry run selects and locks the same rows, then rolls back, its first check too.
    """
    ids = None if task_ids is None else list(task_ids)
    attempt = partial(set_aside.attempt_in_transaction, connection or default_connection, rollback=dry_run)
    first = attempt(lambda writes: _judge(writes, _states(writes)))
    if first.suspects:
        time.sleep(presence.SECOND_LOOK_SECONDS + 0.01)
    # A dry run has rolled back its first check, so the rows of its suspects have no mark. It has one chunk: after its
    # rollback the next chunk would find the same rows.
    assume_dead, chunk = (first.suspects, DRY_RUN_CHUNK) if dry_run else ([], CHUNK)
    result = Sweep()
    while True:
        size = chunk if limit is None else min(chunk, limit - len(result.rows))
        scope = Scope(size, include_ask, ids, result.refused)
        again = attempt(partial(_recover_chunk, scope=scope, assume_dead=assume_dead, record=record))
        result = replace(again, rows=result.rows + again.rows, refused=result.refused | again.refused)
        if dry_run or len(again.rows) + len(again.refused) < size or len(result.rows) == limit:
            return result


def _recover_chunk(writes: Writes, scope: Scope, assume_dead: list[str], record: Record | None) -> Sweep:
    judged = _judge(writes, _states(writes))
    twice_missing = [id for id in assume_dead if id in judged.suspects]
    swept = _take_tasks(writes, replace(judged, dead=judged.dead + twice_missing), scope)
    if record and swept.rows:
        record(writes.connection, swept.rows)
    return swept


def take_back(
    connection: Connection, worker_ids: Iterable[str], task_ids: list[int] | None = None, *, reason: str = "crashed"
) -> Sweep:
    """Take back at once the tasks of these workers, or those in `task_ids`, for the supervisor that saw them die."""
    dead = list(worker_ids)

    def take(writes: Writes) -> Sweep:
        writes.for_workers(dead, lambda ids: [execute(connection, STOP, {"ids": ids, "reason": reason})])
        return _take_tasks(writes, Sweep(dead=dead), Scope(CHUNK, task_ids=task_ids))

    swept = set_aside.attempt_in_transaction(connection, take)
    return take_back(connection, dead, task_ids, reason=reason) if len(swept.rows) >= CHUNK else swept


def _states(
    writes: Writes, known_ids: AskForIds = presence.known_ids, workers_aside: Collection[str] = ()
) -> list[WorkerState]:
    presence.see_epoch(writes.connection)
    known = [id for id in known_ids(writes.connection) if id not in workers_aside]
    return writes.for_workers(known, lambda ids: list(presence.states(ids, writes.connection).values()))


def _judge(writes: Writes, states: list[WorkerState]) -> Sweep:
    """Mark suspects, acquit workers that returned, convict the dead; confirm those that lived through a new epoch."""
    connection = writes.connection
    # Confirmed in an earlier epoch, the loss of a presence that is held now would prove nothing.
    anew = [state.id for state in states if state.held and state.presence_epoch not in (None, state.epoch)]
    suspects = [state.id for state in states if state.life is Life.MISSING]
    returned = [state.id for state in states if state.is_alive and state.missing_since is not None]
    condemned = [state for state in states if state.is_dead and state.registered and state.stopped_at is None]
    gone = [state.id for state in states if state.is_dead and (not state.registered or state.stopped_at is not None)]
    writes.for_workers(anew, lambda ids: [execute(connection, CONFIRM_AGAIN, {"ids": ids, "token": states[0].epoch})])
    writes.for_workers(suspects, lambda ids: [execute(connection, SUSPECT, {"ids": ids})])
    writes.for_workers(returned, lambda ids: [execute(connection, TRUST, {"ids": ids})])
    convicted = writes.for_workers(condemned, lambda part: _convict(connection, part))
    waiting = [state for state in states if state.life in (Life.SILENT, Life.RESTARTED)]
    checked = [state.id for state in states]
    return Sweep(dead=gone + convicted, suspects=suspects, waiting=waiting, checked=checked)


def _convict(connection: Connection, condemned: Sequence[WorkerState]) -> list[str]:
    params = {
        "ids": [state.id for state in condemned],
        "heartbeats": [state.heartbeat_at for state in condemned],
        "missing": [state.missing_since for state in condemned],
    }
    ids = [row["id"] for row in fetch(connection, CONVICT, params)]
    for state in condemned:
        if state.id in ids:
            silence = f"silent for {state.heartbeat_age_seconds:.0f} s"
            evidence = "its presence lock is gone" if state.is_presence_lost else silence
            logger.warning("worker %s (%s, pid %s) is dead: %s", state.id, state.hostname, state.pid, evidence)
    return ids


def _take_tasks(writes: Writes, judged: Sweep, scope: Scope) -> Sweep:
    """Take back tasks of the dead, note what the database refused, and wake idle workers."""
    connection = writes.connection
    rows: list[dict[str, Any]] = []
    if judged.dead and scope.limit > 0:
        params = {**vars(scope), "dead": judged.dead, "but": list(scope.but)}
        if writes.is_careful:
            lost = [row["id"] for row in fetch(connection, LOST, params)]
            rows = writes.for_tasks(lost, lambda ids: fetch(connection, TAKE_BACK, {**params, "task_ids": ids}))
        else:
            rows = fetch(connection, TAKE_BACK, params)
    set_aside.note(writes)
    swept = replace(judged, rows=rows, refused=writes.refused())
    if swept.requeued:
        wakeup.announce(connection)
    return swept
