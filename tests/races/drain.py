"""A worker in miniature: it claims, notes what it ran and when, and flushes, until the queue is empty."""

import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

import psycopg

from tasks.queue import completion, strategies
from tasks.queue.claim import Claim, Claimer
from tasks.queue.completion import Ending


class Run(NamedTuple):
    """One run of a task; times of `time.monotonic()`."""

    key: str | None
    task_id: int
    began: float
    ended: float


@dataclass
class Ledger:
    """What was run, by all threads together."""

    runs: list[Run] = field(default_factory=list)

    def run(self, batch: list[Claim]) -> list[Ending]:
        """As if every task of the batch ran from the answer of the claim until the flush."""
        began = time.monotonic()
        time.sleep(0)  # lets the other threads in
        ended = time.monotonic()
        self.runs += [Run(claim.ordering_key, claim.id, began, ended) for claim in batch]
        return [Ending(claim.id, claim.version, claim.attempt, began, ended) for claim in batch]

    def repeated(self) -> list[int]:
        """Tasks that ran more than once."""
        return [task_id for task_id, times in Counter(run.task_id for run in self.runs).items() if times > 1]

    def overlaps(self) -> list[tuple[Run, Run]]:
        """Runs of one key that were not one after the other."""
        return [(one, two) for one, two in self._neighbours() if two.began < one.ended]

    def inversions(self) -> list[tuple[Run, Run]]:
        """Runs of one key that went against the order of ids."""
        return [(one, two) for one, two in self._neighbours() if two.task_id < one.task_id]

    def _neighbours(self) -> Iterable[tuple[Run, Run]]:
        keyed = sorted((run for run in self.runs if run.key), key=attrgetter("key", "began"))
        for _, runs in groupby(keyed, key=attrgetter("key")):
            yield from pairwise(runs)


def drain(
    connection: psycopg.Connection,
    worker_id: str,
    ledger: Ledger,
    *,
    strategy: str = "skip_locked",
    queues: list[str] | None = None,
    limit: int = 10,
    until: threading.Event | None = None,
    commit_seconds: float = 0.0,
) -> int:
    """Claim and complete until `until` is set (None: from the start) and nothing is due; how many were completed.

    `commit_seconds`: how long a claim takes to commit, so that others cannot see it yet.
    """
    claimer, completed = Claimer(worker_id, queues), 0
    while True:
        is_last = until is None or until.is_set()
        with connection.transaction() if commit_seconds else nullcontext():
            batch = strategies.claim(connection, claimer, limit, strategy)
            time.sleep(commit_seconds)
        endings = ledger.run(batch)
        if endings:
            completed += completion.flush(connection, worker_id, endings).completed
        elif is_last:
            return completed
