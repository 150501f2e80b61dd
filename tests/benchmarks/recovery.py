"""`python -m tests.benchmarks.recovery [KILLS]`: from kill -9 of a whole worker until its task runs elsewhere.

The supervisor dies with its child, so that only the missing presence can tell.
"""

import signal
import sys

from tests.benchmarks.stage import HEADING, WORK, Stage, percentiles, stage
from tests.waiting import wait_until

KILLS = 20
STEPS = ("presence missed", "convicted", "taken back", "running elsewhere")


def one_kill(scene: Stage) -> list[float]:
    """Seconds from the kill to each of STEPS."""
    worker = scene.start("--queue", "doomed")
    [task_id] = scene.database.enqueue(WORK, 600.0, 0.0, queue="doomed")
    wait_until(lambda: scene.ledger.effects(task_id))
    scene.database.rows("UPDATE tasks_task SET queue_name = 'default' WHERE id = %s", task_id)
    killed_at = scene.ledger.now()
    worker.send_all(signal.SIGKILL)
    scene.database.wait_for(task_id, "COMPLETED")
    [first, again] = scene.ledger.effects(task_id)
    [dead] = scene.database.rows("SELECT * FROM tasks_worker WHERE pid = %s", first.pid)
    taken_back = scene.database.value("SELECT finished_at FROM tasks_attempt WHERE task_id = %s", task_id)
    return [(at - killed_at).total_seconds() for at in (dead.missing_since, dead.stopped_at, taken_back, again.began)]


def main(kills: int = KILLS) -> None:
    with stage() as scene:
        scene.start("--queue", "default")
        rounds = [one_kill(scene) for _ in range(kills)]
    print(HEADING)
    for name, seconds in zip(STEPS, zip(*rounds, strict=True), strict=True):
        print(percentiles(f"kill -9 to {name}", seconds), flush=True)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
