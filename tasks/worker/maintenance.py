"""A supervisor's own session: it renews leases, reads requests, recovers, and gives back what workers did not begin."""

import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import psycopg

from tasks import conf
from tasks.diagnosis import lock_holders
from tasks.framework import declaration
from tasks.queue import completion, presence, recovery, release, set_aside, throughput, wakeup
from tasks.queue.completion import Failure
from tasks.queue.release import Unstarted
from tasks.schedule.declared import Scheduler
from tasks.support.database import connect_directly, fetch
from tasks.worker import failures
from tasks.worker.session import listen
from tasks.worker.shared_state import Running, SharedState

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
LOG_SECONDS = 30.0
AFTER_AN_OUTAGE_SECONDS = 2.0
# A statement that took longer was held up on its way. Meanwhile others may have lost their sessions.
STALL_SECONDS = 0.5
# A worker's longest pause before it connects again, and the longest attempt.
LONGEST_RETURN_SECONDS = 15.0
PUBLISH_AFTER_SECONDS = 0.25
# One supervisor sweeps for all, twice as often as one that is alone; the others do it when it is late by so much. If
# each swept every second, and each sweep reads all workers, that would grow with the square of the hosts.
SHARE_OF_PAUSE = 0.5
LATE_SWEEP_SECONDS = 0.02, 0.15
LIST_SECONDS, FOLD_SECONDS = 1.0, 60.0
LONGEST_STATEMENT_SECONDS, SESSION_ENDS_WITHIN_SECONDS = 5.0, 30.0
# The same write may succeed later or elsewhere. Any other error is a refusal, by a constraint or a trigger, for ever.
PASSING = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction)

# By the ids that the children hold: beside an open transaction, the index of claimed rows keeps all that they have run.
REQUESTS = """
SELECT task.claimed_by AS worker_id, task.id, task.attempt
FROM unnest(%(held)s::bigint[]) AS held (id) JOIN tasks_task AS task ON task.id = held.id
WHERE task.claimed_by = ANY(%(ids)s::text[]) AND task.cancel_requested_at IS NOT NULL
"""
STOPS = """
SELECT ARRAY(SELECT id FROM tasks_worker WHERE id = ANY(%(ids)s::text[]) AND stop_requested_at IS NOT NULL) AS ids,
    (SELECT coalesce(extract(epoch FROM next_at - statement_timestamp()), 0)::float8 FROM tasks_schedule
     WHERE NOT paused AND ended_at IS NULL AND task_path = ANY(%(paths)s::text[])
     ORDER BY next_at NULLS FIRST LIMIT 1) AS tick_seconds
"""

PUBLISH = """
UPDATE tasks_worker AS worker SET current_task_id = running.task_id,
    current_since = CASE WHEN worker.current_task_id = running.task_id THEN worker.current_since
                         ELSE clock_timestamp() - make_interval(secs => running.seconds) END,
    running_ids = running.ids::bigint[]
FROM unnest(%(ids)s::text[], %(task_ids)s::bigint[], %(seconds)s::float8[], %(running_ids)s::text[])
    AS running (id, task_id, seconds, ids)
WHERE worker.id = running.id
"""
TASK_PATH = "SELECT task_path FROM tasks_task WHERE id = %(id)s::bigint"


@dataclass
class Child:
    """One worker process as its supervisor knows it.

    `killed_for`: why it was ended on purpose, or empty; `doomed`: the tasks that were meant, as (id, attempt).
    `closed`: those whose attempt was closed on the row while their thread ran on, `closed_at` when first; `alone_at`
    since when nothing else runs. `cancelled`: coroutines to be cancelled, and since when. Times: `time.monotonic()`.
    """

    id: str
    pid: int
    state: SharedState
    started: float
    killed_for: str = ""
    replaced_for: str = ""
    doomed: set[tuple[int, int]] = field(default_factory=set)
    closed: set[tuple[int, int]] = field(default_factory=set)
    closed_at: float = 0.0
    alone_at: float | None = None
    cancelled: dict[tuple[int, int], float] = field(default_factory=dict)
    convicted_at: float | None = None
    is_frozen: bool = False
    is_leaving: bool = False


class Maintenance:
    """Leases, requests, recovery and what remains of ended workers: one connection, and what waits to be written."""

    def __init__(self) -> None:
        self.connection: psycopg.Connection | None = None
        self.pending: deque[Callable[[psycopg.Connection], object]] = deque()
        self.cancels: dict[str, list[tuple[int, int]]] = {}  # by worker: (id, attempt) of what is to be cancelled
        self.to_end: set[int] = set()
        self.stops: set[str] = set()  # workers that are to stop
        self.published: dict[str, tuple[list[int], float]] = {}  # by worker: its tasks, and when they were written
        self.ended: dict[str, tuple[Child, float]] = {}
        self.beat_at = self.sweep_at = self.requests_at = self.fold_at = self.retry_at = self.log_at = 0.0
        self.sweep_after = 0.0  # not before this time
        self.known_ids = presence.KnownIds()
        self.scheduler = Scheduler()
        self.lost_at: float | None = None
        self.is_sweep_put_off = False
        self.beat_seconds: float = min(conf.get("LEASE_SECONDS") / 3, 10.0)
        # A connection that stays silent is given up while the lease still has time for another one.
        self.answer_seconds = min(max(self.beat_seconds, 1.0), LONGEST_STATEMENT_SECONDS + 1.0)
        self.sweep_seconds: float = conf.get("SWEEP_SECONDS")

    # What the supervisor asks for.

    def release(self, worker_id: str, unstarted: list[Unstarted]) -> None:
        """Give back rows that a worker has not begun."""
        if unstarted:
            self.pending.append(lambda connection: release.give_back(connection, worker_id, unstarted))
            self.hurry()

    def take_back(self, child: Child) -> None:
        """Take back what a dead worker held: end the task that it ran, give back the others with their attempt."""
        begun = self._give_back_unbegun(child)
        if child.killed_for:
            for task in child.state.running():
                if task[1:3] not in child.closed:
                    # Killed a moment too late it was running the next task, which nobody meant.
                    self.end_running(child, task, child.killed_for if task[1:3] in child.doomed else "")
        reason = child.killed_for or child.replaced_for or "crashed"
        self.pending.append(lambda connection: recovery.take_back(connection, [child.id], begun, reason=reason))
        self.ended[child.id] = child, time.monotonic() + SESSION_ENDS_WITHIN_SECONDS
        self.hurry()

    def end_running(self, child: Child, task: Running, meant_for: str) -> None:
        """End an attempt on its row: as timed out, as cancelled, or else as released."""
        self.pending.append(
            lambda connection: end_running(connection, child.id, task.id, task.attempt, task.seconds, meant_for)
        )
        self.hurry()

    def _give_back_unbegun(self, child: Child) -> list[int] | None:
        """Give back also rows whose claim's answer died with the child. Returns the ids that have begun."""
        begun = child.state.begun()
        if begun is None:
            self.release(child.id, child.state.unstarted())
        else:
            self.pending.append(lambda connection: release.give_back_unlisted(connection, child.id, begun))
        return begun

    def hurry(self) -> None:
        """Do everything at the next tick."""
        self.beat_at = self.requests_at = 0.0

    # The supervisor's loop.

    def descriptors(self) -> list[int]:
        return [] if self.connection is None or self.connection.closed else [self.connection.fileno()]

    def due_in(self) -> float:
        """Seconds until the next thing is due."""
        due = min(self.beat_at, self.sweep_at, self.requests_at, self.scheduler.due_at)
        return max(0.0, max(due, self.retry_at) - time.monotonic())

    def tick(self, children: Collection[Child]) -> None:
        """Do what is due; when the database is away, keep it for later."""
        now = time.monotonic()
        if now < self.retry_at:
            return
        try:
            connection = self._connect()
            for notification in connection.notifies(timeout=0):
                self._hear(notification, is_own=notification.pid == connection.info.backend_pid)
            self._beat(connection, children, now)
            self._take_back_ahead(connection, children)
            self._write_pending(connection)  # first: what follows reads the table of workers, which may be locked
            self._give_back_late_claims(connection)
            self._publish(connection, children)
            self._read_requests(connection, children, now)
            self._sweep(connection, children)
            self.scheduler.tick(connection)
            if now >= self.fold_at:
                self.fold_at = now if throughput.fold(connection) else now + FOLD_SECONDS
        except psycopg.Error as error:
            logger.warning("supervisor: trying again: %s", lock_holders.told(self.connection, error))
            if self.connection is not None:
                self.connection.close()
            self.connection = None
            self.retry_at = time.monotonic() + RETRY_SECONDS
            self.lost_at = self.lost_at or time.monotonic()

    def _hear(self, notification: psycopg.Notify, *, is_own: bool) -> None:
        """Note a request, or that another supervisor has swept: this one does once it hears no more of that."""
        if notification.payload != wakeup.SWEPT:
            self.requests_at = 0.0
            self.to_end |= wakeup.to_end(notification.payload)
        elif not is_own:
            late = random.uniform(*LATE_SWEEP_SECONDS)  # noqa: S311
            self.sweep_at = max(self.sweep_after, time.monotonic() + self.sweep_seconds * SHARE_OF_PAUSE + late)

    def close(self) -> None:
        """Try once more what still waits, and end the session."""
        self.retry_at = 0.0
        self.tick([])
        if self.pending:
            logger.error("%s writes could not be made; recovery will find these tasks", len(self.pending))
        if self.connection is not None:
            self.connection.close()

    def let_go(self) -> None:
        """In a forked child: this socket is the supervisor's. Closing it in order would end the supervisor's session,
        so that the descriptor is pointed elsewhere instead.
        """
        if self.connection is not None and not self.connection.closed:
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(null, self.connection.fileno(), inheritable=False)
            os.close(null)

    def _connect(self) -> psycopg.Connection:
        if self.connection is None or self.connection.closed:
            name = f"rowlock:supervisor:{os.getpid()}"
            self.connection = connect_directly(name, connect_timeout=2, answer_seconds=self.answer_seconds)
            self.connection.execute(f"SET statement_timeout = '{LONGEST_STATEMENT_SECONDS:g}s'")
            self.connection.execute("SET lock_timeout = '250ms'")
            listen(self.connection, "rowlock_control")
            self.hurry()
            self._put_off_sweep()
        return self.connection

    def _put_off_sweep(self) -> None:
        """After an outage, let all workers renew lease and presence before a sweep judges them.

        A worker that has tried for long tries ever more rarely, but returns within the time that the outage lasted.
        """
        if self.lost_at is not None:
            away = time.monotonic() - self.lost_at
            pause = min(max(away, AFTER_AN_OUTAGE_SECONDS), LONGEST_RETURN_SECONDS)
            self.sweep_after = time.monotonic() + pause
            self.sweep_at = max(self.sweep_at, self.sweep_after)
            self.lost_at = None

    def _note_stall(self, began: float) -> None:
        """Put a sweep off after a statement that was held up since `began`; once only, or sweeps would never come."""
        if time.monotonic() - began > STALL_SECONDS and not self.is_sweep_put_off:
            self.is_sweep_put_off = True
            self.lost_at = began
            self._put_off_sweep()

    def _write_pending(self, connection: psycopg.Connection) -> None:
        """Make each write once; one that meets a row lock goes behind the others and waits for the next tick."""
        for _ in range(len(self.pending)):
            try:
                self.pending[0](connection)
            except psycopg.errors.LockNotAvailable as error:
                if time.monotonic() >= self.log_at:  # each tick tries again
                    logger.warning(
                        "supervisor: a row is locked, trying again: %s", lock_holders.told(connection, error)
                    )
                    self.log_at = time.monotonic() + LOG_SECONDS
                self.pending.rotate(-1)
            except PASSING:
                raise
            except psycopg.Error as error:
                logger.error("supervisor: a write was refused, and is left to recovery: %s", set_aside.one_line(error))
                self.pending.popleft()
            else:
                self.pending.popleft()

    def _take_back_ahead(self, connection: psycopg.Connection, children: Collection[Child]) -> None:
        """Take back what a worker claimed ahead of a long task; its rows stand in no list yet."""
        for child in children:
            listed = child.state.listed()
            if listed is None:
                continue
            ahead = release.unlisted(connection, child.id, listed)
            if ahead and child.state.take_ahead():
                self.release(child.id, ahead)

    def _give_back_late_claims(self, connection: psycopg.Connection) -> None:
        """Give back again once a dead worker's session is gone: a claim that was under way commits all the same."""
        states = presence.states(list(self.ended), connection) if self.ended else {}
        for worker_id, state in states.items():
            child, until = self.ended[worker_id]
            if not state.held:
                self._give_back_unbegun(child)
            if not state.held or time.monotonic() > until:
                del self.ended[worker_id]
        if states:
            self._write_pending(connection)

    def _beat(self, connection: psycopg.Connection, children: Collection[Child], now: float) -> None:
        """Renew the leases of workers that can work. A frozen one gets none: its lease is to end."""
        if now < self.beat_at:
            return
        self.beat_at = now + self.beat_seconds
        beating = [child for child in children if child.state.registered and not child.is_frozen]
        renewed = presence.beat(connection, [child.id for child in beating]) if beating else set()
        self._note_stall(now)
        for child in beating:
            if child.id in renewed:
                child.state.renew_lease()
            else:
                child.state.convicted = 1

    def _publish(self, connection: psycopg.Connection, children: Collection[Child]) -> None:
        """Write which tasks each worker has been running for a moment, if that has changed."""
        now = time.monotonic()
        longest: dict[str, tuple[int | None, float]] = {}
        for child in children:
            lasting = [task for task in child.state.running() if task.seconds >= PUBLISH_AFTER_SECONDS]
            lasting.sort(key=lambda task: -task.seconds)
            ids = [task.id for task in lasting]
            known, written_at = self.published.get(child.id, ([], 0.0))
            # A long list is a large row: while the first task of it is the same, once a second will do.
            if ids != known and (ids[:1] != known[:1] or now - written_at > LIST_SECONDS):
                longest[child.id] = (lasting[0].id, lasting[0].seconds) if lasting else (None, 0.0)
                self.published[child.id] = ids, now
        if longest:
            params = {
                "ids": list(longest),
                "task_ids": [task_id for task_id, _ in longest.values()],
                "seconds": [seconds for _, seconds in longest.values()],
                "running_ids": [f"{{{','.join(map(str, self.published[id][0]))}}}" for id in longest],
            }
            try:
                connection.execute(PUBLISH, params)
            except psycopg.Error:
                for worker_id in longest:
                    del self.published[worker_id]
                raise

    def _read_requests(self, connection: psycopg.Connection, children: Collection[Child], now: float) -> None:
        """Read requests to cancel a task or stop a worker, and when a schedule is due."""
        if now < self.requests_at:
            return
        self.requests_at = now + 1.0
        began = time.monotonic()
        params = {"ids": [child.id for child in children]}
        self.cancels = {}
        held = [task_id for child in children for task_id in child.state.held()]
        for row in fetch(connection, REQUESTS, {**params, "held": held}):
            self.cancels.setdefault(row["worker_id"], []).append((row["id"], row["attempt"]))
        [row] = fetch(connection, STOPS, {**params, "paths": self.scheduler.paths})
        self.stops = set(row["ids"])
        self.scheduler.expect(row["tick_seconds"])
        self._note_stall(began)

    def _sweep(self, connection: psycopg.Connection, children: Collection[Child]) -> None:
        began = time.monotonic()
        if began < self.sweep_at:
            return
        self.is_sweep_put_off = False
        swept, usual = recovery.sweep(connection, known_ids=self.known_ids), self.sweep_seconds
        if not {child.id for child in children}.issuperset(swept.checked):
            wakeup.tell_swept(connection)
            usual *= SHARE_OF_PAUSE
        pause = presence.SECOND_LOOK_SECONDS + 0.01 if swept.suspects else usual
        self.sweep_at = time.monotonic() + (0.0 if len(swept.rows) >= recovery.CHUNK else pause)
        if swept.rows:
            logger.warning(
                "took back from dead workers: %s tasks READY, %s FAILED", len(swept.requeued), len(swept.failed)
            )
        else:
            self._note_stall(began)


def end_running(
    connection: psycopg.Connection, worker_id: str, task_id: int, attempt: int, seconds: float, meant_for: str
) -> None:
    """End the attempt that ran for so many seconds when its worker was killed: as timed out, cancelled or released."""
    if meant_for != "timeout":
        if release.interrupt(connection, worker_id, task_id, attempt, cancel=meant_for == "cancel"):
            wakeup.announce(connection)
        return
    rows = fetch(connection, TASK_PATH, {"id": task_id})
    task = declaration.find(rows[0]["task_path"]) if rows else None
    if task:
        failure = failures.timed_out(attempt, task, seconds)
    else:
        failure = Failure("tasks.exceptions.TimedOut", f"Ended after {seconds:.1f} s.", 0.0, outcome="timed_out")
    completion.end_running(connection, worker_id, task_id, attempt, seconds, failure)
