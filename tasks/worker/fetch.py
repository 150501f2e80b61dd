"""How many tasks to claim at once: never more than can be done within a tenth of a second, and few while there are few.

What one worker takes no other can begin. So it takes one task after the queue was empty, and then twice as many each
time, for as long as it gets as many as it wants: a short task does not wait behind a long one beside an idle worker.
"""

from dataclasses import dataclass

import psycopg

from tasks.queue import release, shortcut
from tasks.queue.claim import Claim, Claimer
from tasks.queue.shortcut import MANY
from tasks.worker.session import Session
from tasks.worker.shared_state import SharedState

TARGET_SECONDS = 0.1
GROWTH = 8
WEIGHT = 0.3


@dataclass
class BatchSize:
    """The adaptive size: one at a time until run times are known, then what the last ones say, at most `maximum`.

    >>> size = BatchSize(maximum=500)
    >>> size.value
    1
    >>> for _ in range(4): size.learn(ran=size.value, seconds=0.0001 * size.value)
    >>> size.value
    500
    >>> size.learn(ran=1, seconds=2.0)
    >>> size.value
    1
    >>> size = BatchSize(maximum=500, value=500)
    >>> for is_full in (True, True, True): size.note(is_full=is_full)
    >>> size.wanted
    8
    >>> size.note(is_full=False)
    >>> size.wanted
    1
    """

    maximum: int
    value: int = 1
    seconds_per_task: float | None = None
    ramp: int = 1

    @property
    def wanted(self) -> int:
        """How many the next claim asks for."""
        return min(self.value, self.ramp)

    def note(self, *, is_full: bool) -> None:
        """Whether the claim got as many as it asked for: then the queue may hold more."""
        self.ramp = min(2 * self.ramp, self.maximum) if is_full else 1

    def learn(self, ran: int, seconds: float) -> None:
        """Note that `ran` tasks took `seconds`. Slower tasks count at once, faster ones little by little."""
        if not ran:
            return
        now = seconds / ran
        before = now if self.seconds_per_task is None else self.seconds_per_task
        self.seconds_per_task = max(now, before + WEIGHT * (now - before))
        fits = int(TARGET_SECONDS / max(self.seconds_per_task, 1e-9))
        self.value = max(1, min(self.maximum, self.value * GROWTH, fits))


class Ahead:
    """Claims one batch ahead, on the worker's first session: it holds presence until that claim is over.

    So nobody takes the worker for dead, or has looked at what it held for the last time, before. Used under the lock of
    that session.
    """

    def __init__(self, session: Session, claimer: Claimer, state: SharedState) -> None:
        self.session = session
        self.claimer = claimer
        self.state = state
        self.limit = 0
        self._batch: list[Claim] = []

    def send(self, connection: psycopg.Connection, limit: int) -> None:
        """Let the server claim up to `limit` tasks, behind the last one, and go on; not where the line is short."""
        if limit < MANY:
            return
        self.state.begin_ahead()
        read = shortcut.send(connection, self.claimer, limit)
        if read is None:
            self.state.end_ahead()
            return
        self.limit = limit

        def keep() -> None:
            self._batch = read()
            if not self._batch:
                self.state.end_ahead()

        self.session.go_on(keep)

    def ids(self) -> set[int]:
        """What was claimed and is not taken."""
        return {claim.id for claim in self._batch}

    def take(self, connection: psycopg.Connection) -> list[Claim]:
        """The batch that was claimed ahead; empty when there is none, or when the supervisor took it back.

        No rows are claimed ahead any more: the next claim is in the worker's own hands.
        """
        batch, self._batch = self._batch, []
        if self.state.end_ahead():
            return batch
        self._release(connection, batch)
        self.claimer.forget_places()
        return []

    def end(self, connection: psycopg.Connection) -> None:
        """The worker leaves: give back what was claimed ahead."""
        self._release(connection, self.take(connection))

    def _release(self, connection: psycopg.Connection, batch: list[Claim]) -> None:
        """What the supervisor gave back already does not match any more."""
        release.release(connection, self.claimer.worker_id, [(claim.id, claim.claimed_at()) for claim in batch])
