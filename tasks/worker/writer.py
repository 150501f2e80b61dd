"""A worker's second session: what has ended is written there while the first one claims what comes next.

With one session alone a worker waits for the server half of its time. It is opened when there is much to write, holds
nothing between two writes, and is closed when there is nothing to do.
"""

from collections.abc import Callable, Sequence

import psycopg

from tasks import transitions
from tasks.database import connect_directly
from tasks.throughput import SumsByQueue
from tasks.transitions import Ending, Flush


class Writer:
    """Sends completions, one lot at a time. Used under the lock of the worker's first session."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.connection: psycopg.Connection | None = None

    def send(self, completions: Sequence[Ending], carried: SumsByQueue) -> Callable[[], Flush]:
        """Send them and go on. Raises psycopg.Error when it cannot connect: then nothing was sent.

        Call what it gives back to read what became of them. On its psycopg.Error they are not known to be written.
        """
        if self.connection is None or self.connection.closed:
            self.connection = connect_directly(f"rowlock:worker:{self.worker_id}")
        answer = transitions.send(self.connection, self.worker_id, completions, carried)

        def read() -> Flush:
            try:
                return answer()
            except psycopg.Error:
                self.close()
                raise

        return read

    def close(self) -> None:
        """End the session; an answer that is under way is read by nobody."""
        if self.connection is not None:
            self.connection.close()
        self.connection = None
