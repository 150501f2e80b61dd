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
        self._sent: list[Ending] = []
        self._read: Callable[[], Flush] | None = None

    @property
    def sent(self) -> list[Ending]:
        """What is under way: sent, and its answer not read."""
        return self._sent if self._read else []

    def send(self, completions: Sequence[Ending], carried: SumsByQueue) -> None:
        """Send them and go on. Raises psycopg.Error when it cannot connect: then nothing was sent."""
        if self.connection is None or self.connection.closed:
            self.connection = connect_directly(f"rowlock:worker:{self.worker_id}")
        self._sent = list(completions)
        self._read = transitions.send(self.connection, self.worker_id, self._sent, carried)

    def read(self) -> Flush:
        """What became of what is under way. On a psycopg.Error it is not known to be written."""
        read, self._read = self._read, None
        if read is None:
            return Flush()
        try:
            return read()
        except psycopg.Error:
            self.close()
            raise

    def close(self) -> None:
        """End the session; an answer that is under way is read by nobody."""
        if self.connection is not None:
            self.connection.close()
        self.connection = self._read = None
