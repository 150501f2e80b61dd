"""Running a task by the pessimistic strategy: its row is locked through the work, and completed in that transaction."""

import time

from django.db import connection, transaction

from tasks import transitions
from tasks.claimer import Claim
from tasks.exceptions import LostClaim
from tasks.transitions import Ending
from tasks.worker.runner import Work

HOLD_ROW = """
SELECT 1 FROM tasks_task
WHERE id = %(id)s::bigint AND claimed_by = %(worker_id)s::text AND attempt = %(attempt)s::int
FOR NO KEY UPDATE
"""


def run(claim: Claim, worker_id: str, work: Work) -> str | None:
    """Call `work` while the row is held, on Django's own connection, so that the handler's writes share its fate.

    Raises what `work` raises, or LostClaim; nothing is written then.
    """
    params: dict[str, int | str] = {"id": claim.id, "worker_id": worker_id, "attempt": claim.attempt}
    started = time.monotonic()
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute(HOLD_ROW, params)
            if cursor.fetchone() is None:
                raise LostClaim(f"Task {claim.id} was taken from worker {worker_id} before it began.")
        return_value = work()
        ending = Ending(claim.id, claim.version, claim.attempt, started, time.monotonic(), return_value)
        if transitions.flush(connection, worker_id, [ending]).refused:
            raise LostClaim(f"Task {claim.id} was taken from worker {worker_id} while it ran.")
    return return_value
