"""Tasks that Rowlock's workers run in benchmarks; the peers' drivers declare the same."""

import logging
import os
import time

from django.db import connection, transaction
from django.db.models import F

from tasks.framework.context import TaskContext
from tasks.framework.decorator import task
from tests.benchmarks.handlers.models import Counter, Entry
from tests.benchmarks.peers import http_wait, wire

logger = logging.getLogger(__name__)
WAIT_MS = int(os.environ.get("BENCH_WAIT_MS", "0"))
ADD = "UPDATE counter SET n = n + 1 WHERE id = %s"


@task
def noop() -> None:
    wire.count()


@task(queue_name="idle", unique_key=lambda key: key)
def unique(key: str) -> None:
    """Only enqueued: the second of a key gives back the first one's id."""


@task(queue_name="idle", unique_key=lambda key: key, on_duplicate="replace")
def debounced(key: str) -> None:
    """Only enqueued: the second of a key changes the first."""


@task
def tick() -> None:
    """What a schedule runs."""
    wire.ticked()


@task
def update(number: int) -> None:
    """One UPDATE of its own, committed by itself."""
    Counter.objects.filter(pk=number).update(n=F("n") + 1)
    wire.count()


@task
def write(number: int) -> None:
    """One INSERT and one UPDATE in a transaction."""
    with transaction.atomic():
        Entry.objects.create(counter_id=number)
        Counter.objects.filter(pk=number).update(n=F("n") + 1)
    wire.count()


@task
def plain_update(number: int) -> None:
    """The same UPDATE as plain SQL on Django's connection, as the peers' handlers write it."""
    with connection.cursor() as cursor:
        cursor.execute(ADD, [number])
    wire.count()


@task
def plain_write(number: int) -> None:
    """The same INSERT and UPDATE as plain SQL."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO entry (counter_id) VALUES (%s)", [number])
        cursor.execute(ADD, [number])
    wire.count()


@task
async def wait(number: int) -> None:
    """Waits for another service."""
    await http_wait.fetch(WAIT_MS)
    wire.count()


@task
def pause(number: int, milliseconds: int) -> None:
    """Takes this long, without work for the processor."""
    began = time.monotonic()
    if milliseconds:
        time.sleep(milliseconds / 1000)
    wire.ran(number, began)


@task(takes_context=True, log_level="INFO")
def tell(context: TaskContext, tells: int, steps: int) -> None:
    """Hundredths of a second; `tells`: 0 nothing, 1 how far it is, 2 that and a line."""
    wire.tell("began")
    for step in range(steps):
        time.sleep(0.01)
        if tells:
            context.report(step / steps, f"row {step}")
        if tells > 1:
            logger.info("row %s of %s is done", step, steps)
    wire.tell("ended")
