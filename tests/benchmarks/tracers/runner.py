"""`python -m tests.benchmarks.tracers.runner TASKS`: the processor's time of the runner for a task, in microseconds."""

import gc
import sys
import time

import django

django.setup()

from django.db import connection  # noqa: E402

from tasks.framework.decorator import task  # noqa: E402
from tasks.queue.claim import Claim  # noqa: E402
from tasks.queue.reports import Reports  # noqa: E402
from tasks.worker import connections  # noqa: E402
from tasks.worker.run import Runner  # noqa: E402
from tasks.worker.supervisor import OBJECTS_BEFORE_COLLECTION  # noqa: E402

ADD = "UPDATE counter SET n = n + 1 WHERE id = %s"
NOW = "2026-01-01 00:00:00+00"
WARM_UP = 200


@task
def update(number: int) -> None:
    """One UPDATE as plain SQL, committed by itself."""
    with connection.cursor() as cursor:
        cursor.execute(ADD, [number])


tasks = int(sys.argv[1])
gc.freeze()  # as a worker does
gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
connection.ensure_connection()
connections.watch()
runner = Runner("w1", Reports("w1"), lambda task_id: None)
runner.begin_batch()
for number in range(tasks + WARM_UP):
    if number == WARM_UP:
        began = time.process_time()
    claim = Claim(number, update.module_path, "default", 0, "[1]", "{}", 2, 1, 5, None, None, NOW, NOW, NOW, None)
    ending = runner.run(claim, update)
    assert ending.failure is None, ending.failure
print(1e6 * (time.process_time() - began) / tasks)
