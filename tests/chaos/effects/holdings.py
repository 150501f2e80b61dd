"""Who held which lock when, and under which fence: written beside the ledger of effects, past the lock's own server."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from psycopg.rows import class_row

from tests.ledger import Ledger, connection

CREATE = """
CREATE TABLE IF NOT EXISTS holding (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, fence bigint NOT NULL,
    pid integer NOT NULL, began timestamptz NOT NULL DEFAULT clock_timestamp(), ended timestamptz)
"""
BEGIN = "INSERT INTO holding (name, fence, pid) VALUES (%s, %s, %s) RETURNING number"
END = "UPDATE holding SET ended = clock_timestamp() WHERE number = %s"


@dataclass(frozen=True)
class Holding:
    """One time in which a lock was held; `ended` is None when its process died in it."""

    number: int
    name: str
    fence: int
    pid: int
    began: datetime
    ended: datetime | None


@contextmanager
def holding(name: str, fence: int) -> Iterator[None]:
    """In a handler, while it holds the lock."""
    number = connection().execute(BEGIN, (name, fence, os.getpid())).fetchone()[0]
    yield
    connection().execute(END, (number,))


def prepare(ledger: Ledger) -> None:
    ledger.connection.execute(CREATE)
    ledger.connection.execute("TRUNCATE holding")


def all_of(ledger: Ledger) -> list[Holding]:
    """In the order in which they began, lock by lock."""
    with ledger.connection.cursor(row_factory=class_row(Holding)) as cursor:
        return cursor.execute("SELECT * FROM holding ORDER BY name, began, number").fetchall()
