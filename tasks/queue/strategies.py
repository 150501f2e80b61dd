"""The claim strategies by name, and the claim that a worker calls."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tasks.queue.claim import Claim, Claimer
from tasks.queue.optimistic import claim_optimistic, is_key_taken, is_of_a_row
from tasks.queue.set_aside import ERRORS
from tasks.queue.shortcut import claim_locked
from tasks.support.database import Connection

CAREFUL_SECONDS = 10.0


@dataclass(frozen=True)
class Strategy:
    """One way to claim.

    Args:
        claim: takes up to a number of tasks.
        max_batch: the most tasks of one claim.
        holds_row: True if the row stays locked while the task runs.
        joins_flush: True if completions of the last batch may share the claim's transaction.
    """

    claim: Callable[[Connection, Claimer, int], list[Claim]]
    max_batch: int
    holds_row: bool = False
    joins_flush: bool = False


STRATEGIES = {
    "skip_locked": Strategy(claim_locked, max_batch=2_000, joins_flush=True),
    "optimistic": Strategy(claim_optimistic, max_batch=50),
    "pessimistic": Strategy(claim_locked, max_batch=1, holds_row=True),
}
DEFAULT_STRATEGY = "skip_locked"


def claim(connection: Connection, claimer: Claimer, limit: int, strategy: str = DEFAULT_STRATEGY) -> list[Claim]:
    """Claim up to `limit` due tasks in the order priority, run_after, id.

    Two claims may meet on one ordering key, and the unique index lets one through. The other tries again. Its last try
    leaves out keyed tasks, so that one busy key cannot keep it from the rest. Raises the error of a constraint or
    trigger that refuses a row. For some seconds rows are then claimed one by one, around those that are refused.
    """
    chosen = STRATEGIES["optimistic" if claimer.is_careful else strategy]
    limit = min(limit, chosen.max_batch, STRATEGIES[strategy].max_batch)
    if limit <= 0:
        return []
    for attempt in (claimer, claimer, replace(claimer, keys=0)):
        try:
            return chosen.claim(connection, attempt, limit)
        except ERRORS as error:
            if not is_key_taken(error):
                if is_of_a_row(error):
                    claimer.careful_until = time.monotonic() + CAREFUL_SECONDS
                raise
            claimer.lost_races += 1
            claimer.is_from_start = False
    return []
