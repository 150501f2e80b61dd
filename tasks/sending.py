"""Statements on their way: the server executes them while the worker runs its tasks."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from tasks.database import rows_of
from tasks.flush import COMPLETE, Ending, Flush, completion_params, note_completions
from tasks.throughput import SumsByQueue, add_up

T = TypeVar("T")


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

    answer = _go_on(connection, execute)

    def read() -> Flush:
        result = Flush()
        written = note_completions(rows_of(answer()), result)
        result.locked = [ending for ending in completions if ending.id not in written]
        return result

    return read


def send_query(
    connection: psycopg.Connection, sql: str, params: Mapping[str, Any]
) -> Callable[[], list[tuple[Any, ...]]]:
    """Send one statement in a transaction of its own and go on; call what it gives back to read its rows.

    They come in PostgreSQL's binary format, which is read in half the time. Until then the connection takes nothing
    else. An error, psycopg.Error, is raised by the reading alone.
    """
    answer = _go_on(connection, lambda: connection.execute(sql, params, binary=True))
    return lambda: answer().fetchall()


def _go_on(connection: psycopg.Connection, execute: Callable[[], T]) -> Callable[[], T]:
    """Send what `execute` does, in a transaction that the server commits without being asked again."""
    pipeline = connection.pipeline()
    result: list[T] = []
    failure: psycopg.Error | None = None
    try:
        pipeline.__enter__()
        connection.execute("BEGIN")
        result.append(execute())
        connection.execute("COMMIT")
    except psycopg.Error as error:  # of one statement, met while the next one was sent
        failure = error

    def read() -> T:
        error = _leave(connection, pipeline)
        if failure or error:
            raise failure or error  # type: ignore[misc]  # one of them is there
        return result[0]

    return read


def _leave(connection: psycopg.Connection, pipeline: AbstractContextManager[object]) -> psycopg.Error | None:
    """Wait for what was sent, and end a transaction that failed; gives the error that was met, if any.

    A session that was lost in the middle of an answer cannot even leave the pipeline: it is closed.
    """
    met = None
    try:
        pipeline.__exit__(None, None, None)
    except psycopg.Error as error:
        met = error.__context__ if isinstance(error.__context__, psycopg.Error) else error
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        connection.close()
    elif not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
        connection.rollback()
    return met
