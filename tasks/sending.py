"""Completions on their way: the server writes them while the worker runs its next tasks."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import psycopg
from psycopg.pq import TransactionStatus

from tasks.database import rows_of
from tasks.flush import COMPLETE, Ending, Flush, completion_params, note_completions
from tasks.throughput import SumsByQueue, add_up


def send(
    connection: psycopg.Connection, worker_id: str, completions: Sequence[Ending], carried: SumsByQueue
) -> Callable[[], Flush]:
    """Send completions in a transaction of their own and go on; call what it gives back to read the answer.

    Until the answer is read the connection takes nothing else. What did not match its row is `locked` in the answer,
    for a flush that waits to look at; the sums are left to be carried to the next one. An error, psycopg.Error, is
    raised by the reading alone. Then nothing was written, unless the session was lost after the commit: a flush of the
    same endings finds that out.
    """
    pipeline = connection.pipeline()
    failure: psycopg.Error | None = None
    try:
        pipeline.__enter__()
        connection.execute("BEGIN")
        cursor = connection.execute(COMPLETE, completion_params(worker_id, completions))
        if carried:
            add_up(connection, worker_id, carried)
        connection.execute("COMMIT")
    except psycopg.Error as error:  # of one statement, met while the next one was sent
        failure = error

    def read() -> Flush:
        error = _leave(connection, pipeline)
        if failure or error:
            raise failure or error  # type: ignore[misc]  # one of them is there
        result = Flush()
        written = note_completions(rows_of(cursor), result)
        result.locked = [ending for ending in completions if ending.id not in written]
        return result

    return read


def _leave(connection: psycopg.Connection, pipeline: AbstractContextManager[object]) -> psycopg.Error | None:
    """Wait for what was sent, and end a transaction that failed; gives the error that was met, if any."""
    met = None
    try:
        pipeline.__exit__(None, None, None)
    except psycopg.Error as error:
        met = error
    if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
        connection.rollback()
    return met
