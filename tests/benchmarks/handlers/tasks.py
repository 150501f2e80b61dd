"""Tasks that Rowlock's workers run in benchmarks; the peers' drivers declare the same."""

import os
import time

from django.db import transaction
from django.db.models import F

from tasks.compat import task
from tests.benchmarks.handlers.models import Counter, Entry
from tests.benchmarks.peers import http_wait, wire

WAIT_MS = int(os.environ.get("BENCH_WAIT_MS", "0"))


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
