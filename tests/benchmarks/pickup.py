"""`python -m tests.benchmarks.pickup [TASKS]`: from enqueue, one at a time, until an idle worker runs the task."""

import sys

from tests.benchmarks.stage import HEADING, WORK, Stage, percentiles, stage
from tests.waiting import wait_until

TASKS = 300
ON_DUTY = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock'
    AND classid::bigint = (hashtext('rowlock:duty')::bigint & 4294967295)
"""


def one_task(scene: Stage) -> float:
    """Seconds from the start of the INSERT to the handler's first statement."""
    wait_until(lambda: scene.database.rows(ON_DUTY), every=0.002)
    [task_id] = scene.database.enqueue(WORK)
    scene.database.wait_for(task_id, "COMPLETED")
    [effect] = scene.ledger.effects(task_id)
    return (effect.began - scene.database.task(task_id).created_at).total_seconds()


def main(tasks: int = TASKS) -> None:
    with stage() as scene:
        scene.start()
        one_task(scene)  # the first makes the handler's connection
        waited = [one_task(scene) for _ in range(tasks)]
    print(HEADING)
    print(percentiles("enqueue to running", waited))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
