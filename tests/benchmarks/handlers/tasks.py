"""What Rowlock's workers run in benchmarks; the peers' drivers declare the same three."""

import time

from django.db import connection

from tasks.compat import task
from tests.benchmarks.peers import wire

UPDATE = "UPDATE counter SET n = n + 1 WHERE id = %s"


@task
def noop() -> None:
    wire.count()


@task
def update(number: int) -> None:
    """One UPDATE of its own, committed by itself."""
    with connection.cursor() as cursor:
        cursor.execute(UPDATE, [number])
    wire.count()


@task
def pause(number: int, milliseconds: int) -> None:
    """Takes this long, without work for the processor."""
    began = time.monotonic()
    if milliseconds:
        time.sleep(milliseconds / 1000)
    wire.ran(number, began)
