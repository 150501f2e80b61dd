"""Statements on their way: the server executes them while the worker runs its tasks."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from tasks import reservation
from tasks.claimer import Claim
from tasks.database import rows_of
from tasks.flush import COMPLETE, Ending, Flush, completion_params, note_completions
from tasks.throughput import SumsByQueue, add_up

T = TypeVar("T")


@dataclass(frozen=True)
class EndedBatch:
    """A reserved batch that has ended: its note, how its tasks ended, and the sums of earlier ones."""

    worker_id: str
    slot: int
    reserved_at: str
    endings: Sequence[Ending]
    carried: SumsByQueue


def send(
    connection: psycopg.Connection, worker_id: str, completions: Sequence[Ending], carried: SumsByQueue
) -> Callable[[], Flush]:
    """Send completions in a transaction of their own and go on; call what it gives back to read the answer.

    Until the answer is read the connection takes nothing else. What did not match its row is `locked` in the answer,
    for a flush that waits to look at; the sums are left to be carried to the next one. An error, psycopg.Error, is
    raised by the reading alone. Then nothing was written, unless the session was lost after the commit: a flush of the
    same endings finds that out.
    """

    def execute() -> psycopg.Cursor[Any]:
        cursor = connection.execute(COMPLETE, completion_params(worker_id, completions))
        if carried:
            add_up(connection, worker_id, carried)
        return cursor

    answer = _go_on(connection, lambda: _in_transaction(connection, execute))

    def read() -> Flush:
        result = Flush()
        written = note_completions(rows_of(answer()), result)
        result.locked = [ending for ending in completions if ending.id not in written]
        return result

    return read


class ReservingSession:
    """A session that is sent statements without an end: it is never asked to leave the pipeline.

    psycopg leaves it with a message after which the server does not count the time any more that a transaction stands
    still, and this session is to be ended then.
    """

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        self._entered = connection.pipeline()
        self._pipeline = self._entered.__enter__()

    def send(
        self, ended: EndedBatch | None, sql: str, following: Mapping[str, Any] | None
    ) -> Callable[[], tuple[Flush, list[Claim], str]]:
        """Send how the reserved batch ended that this session holds (None: it holds none), and reserve the next one.

        The batch's completions, ordinary claims of those that failed and the end of its note are one commit, which lets
        go of what has not begun. `following`: what the reservation `sql` takes, or None. Call what it gives back to
        read the answer: that of `send`, the next batch, and the transaction that holds it. psycopg.Error is raised by
        the reading alone; then the session is of no more use.
        """
        done = rows = hold = None
        failure: psycopg.Error | None = None
        try:
            if ended is not None:
                done = _end_reserved(self.connection, ended)
                self.connection.execute("COMMIT AND CHAIN" if following else "COMMIT")
            elif following is not None:
                self.connection.execute("BEGIN")
            if following is not None:
                rows = self.connection.execute(sql, following, binary=True)
                hold = self.connection.execute(reservation.HOLD)
            _end_sending(self.connection, self._pipeline)
        except psycopg.Error as error:
            failure = error

        def read() -> tuple[Flush, list[Claim], str]:
            if failure:
                raise failure
            self.connection.wait(self._pipeline._fetch_gen(flush=False))
            result = _completed(ended, rows_of(done)) if ended and done else Flush()
            if rows is None or hold is None:
                return result, [], ""
            reserved_at, transaction = hold.fetchall()[0]
            return result, [_claim(row, reserved_at) for row in rows.fetchall()], transaction

        return read


def _claim(row: tuple[Any, ...], reserved_at: str) -> Claim:
    """A row of `tasks.reservation.COLUMNS`."""
    id, path, queue, priority, args, kwargs, version, attempt, most, created_at, due = row
    args, kwargs, created_at = args or "[]", kwargs or "{}", created_at or due
    return Claim(id, path, queue, priority, args, kwargs, version, attempt, most, None, created_at, due, reserved_at)


def _completed(ended: EndedBatch, rows: list[dict[str, Any]]) -> Flush:
    """What END has answered. What failed is to be flushed now, as an ordinary claim."""
    result = Flush()
    completions = [ending for ending in ended.endings if ending.failure is None]
    for row in rows:
        result.completed += row["completed"]
        result.sums[row["queue_name"]].add_bucket(row)
    result.locked = [ending for ending in ended.endings if ending.failure is not None]
    if result.completed < len(completions):  # it does not say which: a flush finds out, and counts all of them
        result.completed, result.locked = 0, list(ended.endings)
    return result


def write_note(connection: psycopg.Connection, note: Mapping[str, Any], transaction: str) -> bool:
    """Note a batch whose rows another session holds, in `transaction`; whether the batch may run.

    If not, those locks are lost, or somebody else has noted one of the rows. Raises psycopg.Error.
    """
    with connection.pipeline() as pipeline:
        noted = connection.execute(reservation.NOTE, note)
        _end_sending(connection, pipeline)  # commits: what is held then is held beside a note that everybody can read
        held = connection.execute(reservation.IS_HELD, {"transaction": transaction})
    return not noted.fetchall()[0][0] and bool(held.fetchall()[0][0])


def _end_reserved(connection: psycopg.Connection, ended: EndedBatch) -> psycopg.Cursor[Any]:
    completions = [ending for ending in ended.endings if ending.failure is None]
    failed = [ending.id for ending in ended.endings if ending.failure is not None]
    noted = {"worker_id": ended.worker_id, "slot": ended.slot, "reserved_at": ended.reserved_at, "ids": failed}
    if failed:
        connection.execute(reservation.CLAIM, noted)
    if ended.carried:
        add_up(connection, ended.worker_id, ended.carried)
    return connection.execute(reservation.END, {**completion_params(ended.worker_id, completions), "slot": ended.slot})


def _in_transaction(connection: psycopg.Connection, execute: Callable[[], T]) -> T:
    """What `execute` sends, in a transaction that the server commits without being asked again."""
    connection.execute("BEGIN")
    result = execute()
    connection.execute("COMMIT")
    return result


def _go_on(connection: psycopg.Connection, execute: Callable[[], T]) -> Callable[[], T]:
    """Send what `execute` does and go on."""
    pipeline = connection.pipeline()
    result: list[T] = []
    failure: psycopg.Error | None = None
    try:
        pipeline.__enter__()
        result.append(execute())
    except psycopg.Error as error:  # of one statement, met while the next one was sent
        failure = error

    def read() -> T:
        error = _leave(connection, pipeline) or failure
        if error:
            if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
                connection.rollback()
            raise error
        return result[0]

    return read


def _end_sending(connection: psycopg.Connection, pipeline: psycopg.Pipeline) -> None:
    """Tell the server that this was all for now, without waiting for its answers as psycopg's own `sync` does."""
    pipeline._enqueue_sync()
    connection.wait(pipeline._communicate_gen())


def _leave(connection: psycopg.Connection, pipeline: AbstractContextManager[object]) -> psycopg.Error | None:
    """Wait for what was sent; gives the error that was met, if any.

    A session that was lost in the middle of an answer cannot even leave the pipeline: it is closed.
    """
    met = None
    try:
        pipeline.__exit__(None, None, None)
    except psycopg.Error as error:
        met = error.__context__ if isinstance(error.__context__, psycopg.Error) else error
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        connection.close()
    return met
