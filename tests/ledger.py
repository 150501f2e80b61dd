"""The ledger of effects: what handlers really did and when, recorded without the queue, to check the queue.

Each handler writes through its process's autocommit connection to a database that no test restarts. Times come from
that server's clock, which all servers of this machine share.
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg
from psycopg.rows import class_row

URL_VARIABLE = "TEST_LEDGER_URL"

CREATE = """
CREATE TABLE IF NOT EXISTS effect (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, task_id bigint NOT NULL, attempt integer NOT NULL,
    pid integer NOT NULL, began timestamptz NOT NULL DEFAULT clock_timestamp(), ended timestamptz)
"""
BEGIN = "INSERT INTO effect (task_id, attempt, pid) VALUES (%s, %s, %s) RETURNING number"
END = "UPDATE effect SET ended = clock_timestamp() WHERE number = %s"


@dataclass(frozen=True)
class Effect:
    """One run of a handler; `ended` is None if its process died during it."""

    number: int
    task_id: int
    attempt: int
    pid: int
    began: datetime
    ended: datetime | None


class Ledger:
    """The ledger for tests to read."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(CREATE)
        self.connection.execute("TRUNCATE effect")

    def close(self) -> None:
        self.connection.close()

    def effects(self, task_id: int | None = None) -> list[Effect]:
        """Every run, or those of one task, ordered by their start."""
        with self.connection.cursor(row_factory=class_row(Effect)) as cursor:
            cursor.execute(
                "SELECT * FROM effect WHERE %(id)s::bigint IS NULL OR task_id = %(id)s ORDER BY number", {"id": task_id}
            )
            return cursor.fetchall()

    def count(self) -> int:
        return self.connection.execute("SELECT count(*) FROM effect").fetchone()[0]

    def now(self) -> datetime:
        """The clock of the effects."""
        return self.connection.execute("SELECT clock_timestamp()").fetchone()[0]


def most_at_once(effects: Iterable[Effect], ended_at: Callable[[int], datetime | None] = lambda pid: None) -> int:
    """Count the most effects that were under way at one moment.

    `ended_at`: when a process was struck. From then on its effects count no more, whatever it does later.
    """
    changes = []
    for effect in effects:
        ends = [moment for moment in (effect.ended, ended_at(effect.pid)) if moment]
        if not ends or min(ends) > effect.began:
            changes += [(effect.began, 1), *([(min(ends), -1)] if ends else [])]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def most_in_a_second(effects: Iterable[Effect]) -> int:
    """Count the most effects that began within a second."""
    begun = sorted(effect.began for effect in effects)
    return max((bisect_left(begun, at + timedelta(seconds=1)) - place for place, at in enumerate(begun)), default=0)


_connections: dict[int, psycopg.Connection] = {}


@contextmanager
def effect(task_id: int, attempt: int) -> Iterator[None]:
    """In a handler: record the start now, and the end, however the block ends."""
    number = connection().execute(BEGIN, (task_id, attempt, os.getpid())).fetchone()[0]
    try:
        yield
    finally:
        connection().execute(END, (number,))


def connection() -> psycopg.Connection:
    """This process's own connection: a fork must not use its parent's."""
    if os.getpid() not in _connections:
        _connections[os.getpid()] = psycopg.connect(os.environ[URL_VARIABLE], autocommit=True)
    return _connections[os.getpid()]
