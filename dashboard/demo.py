"""Demo data: a few dozen tasks, so that the first look at the site is not at empty tables."""

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from dashboard.tasks import count_primes, nap, reach_busy_server, reach_lost_server, write_letter
from tasks.compat import Task
from tasks.declaration import PostgresTask
from tasks.models import Queue

CUSTOMERS = ("ada", "grace", "edsger")


@transaction.atomic
def load_once() -> int:
    """Enqueues the demo's tasks unless that was done before; how many.

    The row of its queue remembers that, whatever has become of the tasks.
    """
    _, is_first = Queue.objects.get_or_create(name="demo-reports")
    return len(enqueue()) if is_first else 0


def enqueue() -> list[int]:
    """Tasks that complete, take time, keep an order, fail once, fail for good, and wait for tomorrow; their ids."""
    tomorrow = timezone.now() + timedelta(days=1)
    calls: list[tuple[Task[Any, Any], list[list[Any]]]] = [
        (count_primes, [[number * 1000] for number in range(1, 21)]),
        (nap, [[seconds / 2] for seconds in range(1, 5)]),
        (write_letter, [[name, number] for number in range(1, 5) for name in CUSTOMERS]),
        (reach_busy_server, [[]]),
        (reach_lost_server, [[]]),
        (count_primes.using(run_after=tomorrow, priority=10), [[50_000]] * 3),
    ]
    return [
        task_id for task, args in calls for task_id in PostgresTask.of(task).enqueue_many((each, {}) for each in args)
    ]
