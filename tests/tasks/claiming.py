"""Claiming as a worker does it, in few words."""

from collections.abc import Iterable
from functools import partial

from django.db import connection as default_connection

from tasks.models import Task
from tasks.queue import strategies
from tasks.queue.claim import Claim, Claimer
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


def ids(tasks: Iterable[Task | Claim]) -> list[int]:
    return [task.id for task in tasks]
