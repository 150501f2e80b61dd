"""`python -m tests.benchmarks.recovery [KILLS]`: from kill -9 of a whole worker until its task runs elsewhere.

The supervisor dies with its child, so that only the missing presence can tell. Then a process with a thousand
coroutines is killed, and its supervisor lives.
"""

import os
import signal
import sys

from tests.benchmarks.stage import HEADING, WORK, Stage, percentiles, stage
from tests.waiting import wait_until

KILLS = 20
REST = "tests.tasks.worker_app.pooled.rest"
AT_ONCE = 1000
ALL_BACK = """
SELECT max(finished_at) FROM tasks_attempt WHERE outcome = 'abandoned' AND task_id = ANY(%s) HAVING count(*) = %s
"""
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


def one_kill_of_many(scene: Stage) -> float:
    """Seconds from the kill of a process with AT_ONCE tasks until the last of them is READY again."""
    worker = scene.start("--queue", "many", "--coroutines", AT_ONCE)
    before = scene.ledger.count()
    ids = scene.database.enqueue(REST, 600.0, queue="many", count=AT_ONCE)
    wait_until(lambda: scene.ledger.count() == before + AT_ONCE, seconds=60)
    scene.database.rows("UPDATE tasks_task SET queue_name = 'nobody' WHERE id = ANY(%s)", ids)
    [child] = worker.children()
    killed_at = scene.ledger.now()
    os.kill(child, signal.SIGKILL)
    [[back_at]] = wait_until(lambda: scene.database.rows(ALL_BACK, ids, AT_ONCE))
    worker.send_all(signal.SIGKILL)
    return (back_at - killed_at).total_seconds()


def main(kills: int = KILLS) -> None:
    with stage() as scene:
        scene.start("--queue", "default")
        rounds = [one_kill(scene) for _ in range(kills)]
        of_many = [one_kill_of_many(scene) for _ in range(max(1, kills // 4))]
    print(HEADING)
    for name, seconds in zip(STEPS, zip(*rounds, strict=True), strict=True):
        print(percentiles(f"kill -9 to {name}", seconds), flush=True)
    print(percentiles(f"of {AT_ONCE} at once to all READY", of_many), flush=True)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
