"""Claiming as a worker does it, in few words."""

from collections.abc import Iterable
from functools import partial

from django.db import connection as default_connection

from tasks import claims
from tasks.claimer import Claim, Claimer
from tasks.database import Connection
from tasks.models import Task

STRATEGIES = sorted(claims.STRATEGIES)


def claim(
    limit: int = 10,
    *,
    worker_id: str = "w1",
    queues: list[str] | None = None,
    strategy: str = "skip_locked",
    connection: Connection = default_connection,
) -> list[Claim]:
    """One claim by a worker that has not claimed before."""
    return claims.claim(connection, Claimer(worker_id, queues), limit, strategy)


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
    batches = iter(partial(claims.claim, connection, claimer, limit, strategy), [])
    return [claim.id for batch in batches for claim in batch]


def ids(tasks: Iterable[Task | Claim]) -> list[int]:
    return [task.id for task in tasks]
