"""What a supervisor writes about the tasks of a child: given back, interrupted, or past their time."""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from tasks import conf
from tasks.exceptions import TimedOut
from tasks.framework import declaration
from tasks.queue import completion, presence, recovery, set_aside, throughput, wakeup
from tasks.queue import release as releases
from tasks.queue.completion import Failure
from tasks.queue.set_aside import Writes
from tasks.support.database import connect_directly, fetch
from tasks.worker import run

if TYPE_CHECKING:
    from tasks.worker.supervisor import Process

logger = logging.getLogger(__name__)

TASK_PATH = "SELECT task_path FROM tasks_task WHERE id = %(id)s::bigint"
UNBEGUN = """
SELECT id FROM tasks_task
WHERE status = 'PROCESSING' AND claimed_by = %(worker_id)s::text AND id <> ALL(%(begun)s::bigint[])
"""
WAIT_FOR_NOBODY = "SET LOCAL lock_timeout = '20ms'"


def give_back(connection: psycopg.Connection, worker_id: str, unstarted: list[tuple[int, datetime]]) -> None:
    """Give back rows that have not begun, each as its id and its time of claim. Raises LockNotAvailable."""
    claimed_at = dict(unstarted)

    def release(ids: Iterable[int]) -> int:
        return releases.release(connection, worker_id, [(id, claimed_at[id]) for id in ids])

    def work(writes: Writes) -> None:
        if writes.is_careful:
            _release(writes, list(claimed_at), release)
        else:
            _announce(writes, release(claimed_at))

    set_aside.attempt(connection, work)


def give_back_all_but(connection: psycopg.Connection, worker_id: str, begun: list[int]) -> None:
    """Give back whatever stands under this worker's id and has not begun. Raises LockNotAvailable."""

    def work(writes: Writes) -> None:
        if not writes.is_careful:
            _announce(writes, len(releases.release_unknown(connection, worker_id, begun)))
            return
        ids = [row["id"] for row in fetch(connection, UNBEGUN, {"worker_id": worker_id, "begun": begun})]
        known = {*begun, *ids}
        _release(writes, ids, lambda part: len(releases.release_unknown(connection, worker_id, known - {*part})))

    set_aside.attempt(connection, work)


def _release(writes: Writes, ids: list[int], release: Callable[[Sequence[int]], int]) -> None:
    """Find the rows that are locked or refused, and release the others.

    What is locked is to be tried again, so this raises LockNotAvailable. What the database refuses is left to recovery,
    which sets it aside.
    """

    def release_now(part: Sequence[int]) -> list[int]:
        with writes.connection.cursor() as cursor:
            cursor.execute(WAIT_FOR_NOBODY)
        return [release(part)]

    _announce(writes, sum(writes.for_tasks(ids, release_now)))
    for error in writes.tasks.values():
        if isinstance(error, psycopg.errors.LockNotAvailable):
            raise error


def _announce(writes: Writes, released: int) -> None:
    if released:
        wakeup.announce(writes.connection)


def interrupt(connection: psycopg.Connection, worker_id: str, task_id: int, attempt: int, cancel: bool) -> None:
    """End the attempt that ran when its child was killed by a stop or a cancel."""
    if releases.interrupt(connection, worker_id, task_id, attempt, cancel=cancel):
        wakeup.announce(connection)


def time_out(connection: psycopg.Connection, worker_id: str, task_id: int, attempt: int, seconds: float) -> None:
    """Fail the attempt whose child was killed at the task's timeout, after so many seconds."""
    rows = fetch(connection, TASK_PATH, {"id": task_id})
    task = declaration.find(rows[0]["task_path"]) if rows else None
    retry = run.retry_seconds(task, attempt) if task else 0.0
    text = f"Ended after {seconds:.1f} s: its timeout is {task.timeout if task else '?'} s."
    failure = Failure(f"{TimedOut.__module__}.{TimedOut.__qualname__}", text, retry, outcome="timed_out")
    completion.end_running(connection, worker_id, task_id, attempt, seconds, failure)


RETRY_SECONDS = 0.5
TELL_SECONDS = 30.0
AFTER_AN_OUTAGE_SECONDS = 2.0
# A statement of ours that took longer was held up on its way. Within it others may have lost their sessions.
STALL_SECONDS = 0.5
# The longest pause of a child that tries to connect again, and the longest that an attempt of it may take.
LONGEST_RETURN_SECONDS = 15.0
PUBLISH_AFTER_SECONDS = 0.25
FOLD_SECONDS = 60.0
LONGEST_STATEMENT_SECONDS = 5.0
SESSION_ENDS_WITHIN_SECONDS = 30.0
# The same write may succeed later or elsewhere. Any other error is a refusal, by a constraint or a trigger, for ever.
PASSING = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction)

REQUESTS = """
SELECT task.claimed_by AS worker_id, task.id, task.attempt FROM tasks_task AS task
WHERE task.status = 'PROCESSING' AND task.claimed_by = ANY(%(ids)s::text[]) AND task.cancel_requested_at IS NOT NULL
"""
STOPS = "SELECT id FROM tasks_worker WHERE id = ANY(%(ids)s::text[]) AND stop_requested_at IS NOT NULL"

# Rows of a child of which it has told nobody yet.
UNLISTED = """
SELECT task.id, task.started_at FROM tasks_task AS task
WHERE task.status = 'PROCESSING' AND task.claimed_by = %(worker_id)s::text AND task.id <> ALL(%(ids)s::bigint[])
"""

PUBLISH = """
UPDATE tasks_worker AS worker SET current_task_id = running.task_id,
    current_since = clock_timestamp() - make_interval(secs => running.seconds)
FROM unnest(%(ids)s::text[], %(task_ids)s::bigint[], %(seconds)s::float8[]) AS running (id, task_id, seconds)
WHERE worker.id = running.id AND worker.current_task_id IS DISTINCT FROM running.task_id
"""


class Keeper:
    """One connection, made when it is first needed, and what waits to be written through it."""

    def __init__(self) -> None:
        self.connection: psycopg.Connection | None = None
        self.pending: deque[Callable[[psycopg.Connection], object]] = deque()
        self.cancels: dict[str, list[tuple[int, int]]] = {}
        self.to_end: set[int] = set()
        self.stops: set[str] = set()
        self.published: dict[str, int | None] = {}
        self.buried: dict[str, tuple[Process, float]] = {}
        self.beat_at = self.sweep_at = self.ask_at = self.fold_at = self.retry_at = 0.0
        self.tell_at = 0.0
        self.lost_at: float | None = None
        self.is_sweep_put_off = False
        self.beat_seconds: float = min(conf.get("LEASE_SECONDS") / 3, 10.0)
        # A way that takes bytes and is silent: it is given up while the lease still has time for another one.
        self.answer_seconds = min(max(self.beat_seconds, 1.0), LONGEST_STATEMENT_SECONDS + 1.0)
        self.sweep_seconds: float = conf.get("SWEEP_SECONDS")

    # What the supervisor asks for.

    def release(self, worker_id: str, unstarted: list[tuple[int, datetime]]) -> None:
        """Give back rows of a child that it has not begun, each as its id and its time of claim."""
        if unstarted:
            self.pending.append(lambda connection: give_back(connection, worker_id, unstarted))
            self.hurry()

    def bury(self, child: "Process") -> None:
        """Give back what a dead child held: what it has not begun with its attempt, what it ran as its death says."""
        begun = self._give_back_unbegun(child)
        running = child.state.running()
        if running and child.killed_for:
            task_id, attempt, seconds = running
            # Killed a moment too late it was running the next task, which nobody meant.
            was_meant = (task_id, attempt) == child.doomed
            if child.killed_for == "timeout" and was_meant:
                self.pending.append(lambda connection: time_out(connection, child.id, task_id, attempt, seconds))
            else:
                cancel = child.killed_for == "cancel" and was_meant
                self.pending.append(lambda connection: interrupt(connection, child.id, task_id, attempt, cancel))
        reason = child.killed_for or "crashed"
        self.pending.append(lambda connection: recovery.take_back(connection, [child.id], begun, reason=reason))
        self.buried[child.id] = child, time.monotonic() + SESSION_ENDS_WITHIN_SECONDS
        self.hurry()

    def _give_back_unbegun(self, child: "Process") -> list[int] | None:
        """Give back also rows whose claim's answer died with the child. Returns the ids that have begun."""
        begun = child.state.begun()
        if begun is None:
            self.release(child.id, child.state.unstarted())
        else:
            self.pending.append(lambda connection: give_back_all_but(connection, child.id, begun))
        return begun

    def cancelled(self, worker_id: str) -> list[tuple[int, int]]:
        """Tasks of this worker that somebody wants cancelled, as (id, attempt)."""
        return self.cancels.pop(worker_id, [])

    def is_stop_requested(self, worker_id: str) -> bool:
        return worker_id in self.stops

    def hurry(self) -> None:
        """Do everything at the next tick."""
        self.beat_at = self.ask_at = 0.0

    # The supervisor's loop.

    def descriptors(self) -> list[int]:
        return [] if self.connection is None or self.connection.closed else [self.connection.fileno()]

    def due_in(self) -> float:
        """Seconds until the next thing is due."""
        due = min(self.beat_at, self.sweep_at, self.ask_at)
        return max(0.0, max(due, self.retry_at) - time.monotonic())

    def tick(self, children: Iterable["Process"]) -> None:
        """Do what is due; when the database is away, keep it for later."""
        children = list(children)
        now = time.monotonic()
        if now < self.retry_at:
            return
        try:
            connection = self._connect()
            self._hear(connection)
            self._beat(connection, children, now)
            self._take_back_ahead(connection, children)
            self._write_pending(connection)
            self._look_after_the_dead(connection)
            self._publish(connection, children)
            self._ask(connection, children, now)
            self._sweep(connection)
            self._fold(connection, now)
        except psycopg.Error as error:
            self._lose(error)

    def close(self) -> None:
        """The last things: what still waits is tried once more."""
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
            schema = fetch(self.connection, "SELECT current_schema() AS name")[0]["name"]
            self.connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"rowlock_control_{schema}")))
            self.hurry()
            self._wait_for_the_others()
        return self.connection

    def _wait_for_the_others(self) -> None:
        """After an outage: let everybody beat and take presence again before anybody is judged by them.

        Who has tried for long tries ever more rarely, but returns within the time that the outage has lasted.
        """
        if self.lost_at is not None:
            away = time.monotonic() - self.lost_at
            pause = min(max(away, AFTER_AN_OUTAGE_SECONDS), LONGEST_RETURN_SECONDS)
            self.sweep_at = max(self.sweep_at, time.monotonic() + pause)
            self.lost_at = None

    def _note_stall(self, began: float) -> None:
        """After a statement that was held up since `began`: as after an outage. Once for each sweep, or none came."""
        if time.monotonic() - began > STALL_SECONDS and not self.is_sweep_put_off:
            self.is_sweep_put_off = True
            self.lost_at = began
            self._wait_for_the_others()

    def _lose(self, error: psycopg.Error) -> None:
        """An error of the session or of one statement: forget the session, and try again in a moment."""
        logger.warning("supervisor: the database did not answer, trying again: %s", str(error).strip())
        if self.connection is not None:
            self.connection.close()
        self.connection = None
        self.retry_at = time.monotonic() + RETRY_SECONDS
        self.lost_at = self.lost_at or time.monotonic()

    def _hear(self, connection: psycopg.Connection) -> None:
        for notification in connection.notifies(timeout=0):
            self.ask_at = 0.0
            self.to_end |= wakeup.to_end(notification.payload)

    def _write_pending(self, connection: psycopg.Connection) -> None:
        """Each once; what somebody's row lock is in the way of goes behind the others and waits for the next tick."""
        for _ in range(len(self.pending)):
            try:
                self.pending[0](connection)
            except psycopg.errors.LockNotAvailable as error:
                self._tell_of_lock(error)
                self.pending.rotate(-1)
            except PASSING:
                raise
            except psycopg.Error as error:
                logger.error("supervisor: a write was refused, and is left to recovery: %s", set_aside.one_line(error))
                self.pending.popleft()
            else:
                self.pending.popleft()

    def _tell_of_lock(self, error: psycopg.Error) -> None:
        """Once, and again while it lasts: each tick tries again."""
        now = time.monotonic()
        if now >= self.tell_at:
            logger.warning("supervisor: a row is locked, trying again: %s", str(error).strip())
            self.tell_at = now + TELL_SECONDS

    def _take_back_ahead(self, connection: psycopg.Connection, children: list["Process"]) -> None:
        """What a child has claimed ahead while its task lasts: the child has not told which rows these are."""
        for child in children:
            listed = child.state.listed()
            if listed is None:
                continue
            rows = fetch(connection, UNLISTED, {"worker_id": child.id, "ids": listed})
            if rows and child.state.take_ahead():
                self.release(child.id, [(row["id"], row["started_at"]) for row in rows])

    def _look_after_the_dead(self, connection: psycopg.Connection) -> None:
        """A claim that was under way when a child died commits all the same: look again once its session is gone."""
        if not self.buried:
            return
        for worker_id, state in presence.states(list(self.buried), connection).items():
            child, until = self.buried[worker_id]
            if not state.held:
                self._give_back_unbegun(child)
            if not state.held or time.monotonic() > until:
                del self.buried[worker_id]
        self._write_pending(connection)

    def _beat(self, connection: psycopg.Connection, children: list["Process"], now: float) -> None:
        """Renew the leases of those that can work. A frozen child gets none: its lease is to end."""
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

    def _publish(self, connection: psycopg.Connection, children: list["Process"]) -> None:
        """What each child has been running for a moment; a change is written, nothing else."""
        changed: dict[str, tuple[int | None, float]] = {}
        for child in children:
            running = child.state.running()
            is_lasting = running is not None and running[2] >= PUBLISH_AFTER_SECONDS
            task_id, seconds = (running[0], running[2]) if running is not None and is_lasting else (None, 0.0)
            if self.published.get(child.id) != task_id:
                changed[child.id] = (task_id, seconds)
        if not changed:
            return
        params = {
            "ids": list(changed),
            "task_ids": [task_id for task_id, _ in changed.values()],
            "seconds": [seconds for _, seconds in changed.values()],
        }
        connection.execute(PUBLISH, params)
        self.published.update({worker_id: task_id for worker_id, (task_id, _) in changed.items()})

    def _ask(self, connection: psycopg.Connection, children: list["Process"], now: float) -> None:
        """Look for requests to cancel a task or stop a worker."""
        if now < self.ask_at:
            return
        self.ask_at = now + 1.0
        began = time.monotonic()
        params = {"ids": [child.id for child in children]}
        self.cancels = {}
        for row in fetch(connection, REQUESTS, params):
            self.cancels.setdefault(row["worker_id"], []).append((row["id"], row["attempt"]))
        self.stops = {row["id"] for row in fetch(connection, STOPS, params)}
        self._note_stall(began)

    def _sweep(self, connection: psycopg.Connection) -> None:
        began = time.monotonic()
        if began < self.sweep_at:
            return
        self.is_sweep_put_off = False
        swept = recovery.sweep(connection)
        pause = presence.SECOND_LOOK_SECONDS + 0.01 if swept.suspects else self.sweep_seconds
        self.sweep_at = time.monotonic() + (0.0 if len(swept.rows) >= recovery.CHUNK else pause)
        if swept.rows:
            logger.warning(
                "took back from dead workers: %s tasks READY, %s FAILED", len(swept.requeued), len(swept.failed)
            )
        else:
            self._note_stall(began)

    def _fold(self, connection: psycopg.Connection, now: float) -> None:
        if now >= self.fold_at:
            self.fold_at = now if throughput.fold(connection) else now + FOLD_SECONDS
