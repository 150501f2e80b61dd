"""Claim, complete and fail as a worker does, in few words."""

import time
from collections.abc import Iterable
from functools import partial

from django.db import connection as default_connection

from tasks.exceptions import LostClaim
from tasks.models import Task
from tasks.queue import completion, strategies
from tasks.queue.claim import Claim, Claimer
from tasks.queue.completion import Ending, Failure
from tasks.support.database import Connection

STRATEGIES = sorted(strategies.STRATEGIES)


def claim(
    limit: int = 10,
    *,
    worker_id: str = "w1",
    queues: list[str] | None = None,
    strategy: str = "skip_locked",
    connection: Connection = default_connection,
) -> list[Claim]:
    """One claim by a worker that has not claimed before."""
    return strategies.claim(connection, Claimer(worker_id, queues), limit, strategy)


def claim_all(
    limit: int = 10,
    *,
    worker_id: str = "w1",
    queues: list[str] | None = None,
    strategy: str = "skip_locked",
    connection: Connection = default_connection,
) -> list[int]:
    """Claim until nothing more comes; the ids in the order of the claims."""
    claimer = Claimer(worker_id, queues)
    batches = iter(partial(strategies.claim, connection, claimer, limit, strategy), [])
    return [claim.id for batch in batches for claim in batch]


def complete(connection: Connection, worker_id: str, claimed: Claim, return_value: str | None = None) -> None:
    """Complete one claimed task now. Raises LostClaim if this worker no longer holds it."""
    end(connection, worker_id, claimed, return_value)


def fail(connection: Connection, worker_id: str, claimed: Claim, failure: Failure) -> None:
    """End one attempt as failed now. Raises LostClaim if this worker no longer holds the task."""
    end(connection, worker_id, claimed, None, failure)


def end(
    connection: Connection, worker_id: str, claimed: Claim, value: str | None, failure: Failure | None = None
) -> None:
    now = time.monotonic()
    ending = Ending(claimed.id, claimed.version, claimed.attempt, now, now, value, failure)
    if completion.flush(connection, worker_id, [ending]).refused:
        raise LostClaim(f"Task {claimed.id} is no longer held by worker {worker_id}.")


def ids(tasks: Iterable[Task | Claim]) -> list[int]:
    return [task.id for task in tasks]
