"""The batch after the one that runs: the server claims it while the worker runs.

With claims and handlers in turn each waits for the other half of the time. Only where tasks end within a moment: what
is claimed ahead no other worker can begin. While a task lasts, the supervisor takes it back (`Page.listed`).
"""

import psycopg

from tasks import claims, transitions
from tasks.claimer import Claim, Claimer
from tasks.shortcut import MANY
from tasks.worker.page import Page
from tasks.worker.session import Session


class Ahead:
    """Claims one batch ahead, on the worker's first session: it holds presence until that claim is over.

    So nobody takes the worker for dead, or has looked at what it held for the last time, before. Used under the lock of
    that session.
    """

    def __init__(self, session: Session, claimer: Claimer, page: Page) -> None:
        self.session = session
        self.claimer = claimer
        self.page = page
        self.limit = 0
        self._batch: list[Claim] = []

    def send(self, connection: psycopg.Connection, limit: int) -> None:
        """Let the server claim up to `limit` tasks, behind the last one, and go on; not where the line is short."""
        if limit < MANY:
            return
        self.page.begin_ahead()
        read = claims.send(connection, self.claimer, limit)
        if read is None:
            self.page.end_ahead()
            return
        self.limit = limit

        def keep() -> None:
            self._batch = read()
            if not self._batch:
                self.page.end_ahead()

        self.session.go_on(keep)

    def ids(self) -> set[int]:
        """What was claimed and is not taken."""
        return {claim.id for claim in self._batch}

    def take(self, connection: psycopg.Connection) -> list[Claim]:
        """The batch that was claimed ahead; empty when there is none, or when the supervisor took it back.

        No rows are claimed ahead any more: the next claim is in the worker's own hands.
        """
        batch, self._batch = self._batch, []
        if self.page.end_ahead():
            return batch
        self._release(connection, batch)
        self.claimer.forget_places()
        return []

    def end(self, connection: psycopg.Connection) -> None:
        """The worker leaves: give back what was claimed ahead."""
        self._release(connection, self.take(connection))

    def _release(self, connection: psycopg.Connection, batch: list[Claim]) -> None:
        """What the supervisor gave back already does not match any more."""
        transitions.release(connection, self.claimer.worker_id, [(claim.id, claim.claimed_at()) for claim in batch])
