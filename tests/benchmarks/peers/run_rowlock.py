"""Rowlock's own part of the verbs of `subject.py`, as a Django project calls it; `run_worker` is started as it is."""

import sys
import time

import django

django.setup()

from django.db import connection, transaction  # noqa: E402

from tests.benchmarks.handlers.tasks import noop, pause  # noqa: E402
from tests.benchmarks.peers import wire  # noqa: E402

FILL = """
INSERT INTO tasks_task (task_path, args)
SELECT 'tests.benchmarks.handlers.tasks.' || %(kind)s::text,
    CASE WHEN %(kind)s = 'noop' THEN '[]' ELSE jsonb_build_array(n) END FROM generate_series(1, %(tasks)s) AS n
"""


def fill(kind: str, tasks: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE tasks_task, tasks_attempt, tasks_throughput")
        cursor.execute(FILL, {"kind": kind, "tasks": int(tasks)})
        cursor.execute("VACUUM ANALYZE tasks_task")


def send() -> None:
    connection.ensure_connection()
    for line in sys.stdin:
        number, milliseconds = map(int, line.split())
        wire.sent(number, time.monotonic())
        pause.enqueue(number, milliseconds)


def one_in_a_transaction() -> int:
    with transaction.atomic():
        noop.using(queue_name="idle").enqueue()
    return 1


def one() -> int:
    noop.using(queue_name="idle").enqueue()
    return 1


def a_thousand() -> int:
    return len(noop.using(queue_name="idle").enqueue_many([((), {})] * 1000))


def enqueue(how: str, seconds: str) -> None:
    once = {"single": one, "transaction": one_in_a_transaction, "bulk": a_thousand}[how]
    once()
    wire.ready()
    began, enqueued = time.monotonic(), 0
    while time.monotonic() - began < float(seconds):
        enqueued += once()
    wire.rate(enqueued, began)


if __name__ == "__main__":
    {"fill": fill, "send": send, "enqueue": enqueue}[sys.argv[1]](*sys.argv[2:])
