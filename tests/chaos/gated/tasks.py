"""Handlers that wait at a gate, which a test keeps shut: an advisory lock in the ledger's database."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tasks.compat import TaskContext
from tasks.framework.decorator import task
from tests.ledger import URL_VARIABLE, effect

APP = "tests.chaos.gated"
GATE = 4711


def wait_once(context: TaskContext, gate: int) -> None:
    """The first run ends when the gate is opened, later ones at once."""
    with effect(int(context.task_result.id), context.attempt):
        if context.attempt == 1:
            with psycopg.connect(os.environ[URL_VARIABLE], autocommit=True) as connection:
                connection.execute("SELECT pg_advisory_lock_shared(%s)", (gate,))


@task(takes_context=True)
def wait_at_the_gate(context: TaskContext, gate: int = GATE) -> None:
    wait_once(context, gate)


@task(takes_context=True, max_attempts=1, timeout=1.0)
def wait_past_its_timeout(context: TaskContext, gate: int = GATE) -> None:
    """In a thread, which a timeout cannot end."""
    wait_once(context, gate)


@contextmanager
def shut_gate(ledger_url: str, gate: int = GATE) -> Iterator[psycopg.Connection]:
    """Nobody gets through; closing the connection opens the gate."""
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (gate,))
        yield connection
