"""The record of what really happened, on a second connection in autocommit: no rollback or kill undoes it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

CREATE = """
CREATE TABLE lab_ledger (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL, worker int NOT NULL, item bigint, process int NOT NULL DEFAULT pg_backend_pid(),
    began timestamptz NOT NULL DEFAULT clock_timestamp(), ended timestamptz,
    wait_ms float8 NOT NULL DEFAULT 0, lost_races int NOT NULL DEFAULT 0, retries int NOT NULL DEFAULT 0,
    queries int NOT NULL DEFAULT 0
);
CREATE TABLE lab_statement (statement text NOT NULL, number int NOT NULL)
"""
EMPTY = "TRUNCATE lab_ledger, lab_statement"
KEEP = "INSERT INTO lab_statement SELECT * FROM unnest(%(statements)s::text[], %(numbers)s::int[])"
BEGIN = """
INSERT INTO lab_ledger (kind, worker, item, ended, wait_ms, lost_races, retries, queries)
VALUES (%(kind)s, %(worker)s, %(item)s, CASE WHEN %(is_over)s::boolean THEN clock_timestamp() END,
    %(wait_ms)s, %(lost_races)s, %(retries)s, %(queries)s)
RETURNING id
"""
END = "UPDATE lab_ledger SET ended = clock_timestamp() WHERE id = %(id)s"

DONE = "SELECT DISTINCT item FROM lab_ledger WHERE kind = 'effect'"


@dataclass
class Ledger:
    """One process's access to the ledger, and its counters so far, which every line repeats.

    `wait_ms`: time since the previous line in statements and locks that may have to wait.
    """

    connection: psycopg.Connection
    worker: int
    wait_ms: float = 0.0
    lost_races: int = 0
    retries: int = 0
    queries: int = 0
    _open: list[int] = field(default_factory=list)

    @contextmanager
    def effect(self, item: int | None, kind: str = "effect") -> Iterator[None]:
        """An effect outside the transaction: recorded before the block, its end after it."""
        line = self.note(kind, item, is_over=False)
        yield
        self.connection.execute(END, {"id": line})

    def note(self, kind: str, item: int | None = None, *, is_over: bool = True) -> int:
        """Write one line. Returns its id."""
        params: dict[str, Any] = {
            "kind": kind,
            "worker": self.worker,
            "item": item,
            "is_over": is_over,
            "wait_ms": self.wait_ms,
            "lost_races": self.lost_races,
            "retries": self.retries,
            "queries": self.queries,
        }
        self.wait_ms = 0.0
        [(line,)] = self.connection.execute(BEGIN, params).fetchall()
        return int(line)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Add the duration of the block to `wait_ms`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.wait_ms += 1000 * (time.perf_counter() - began)

    def keep(self, statements: Mapping[str, int]) -> None:
        """Record the statements that the pattern has sent, and how often."""
        self.connection.execute(KEEP, {"statements": list(statements), "numbers": list(statements.values())})

    def items_done(self) -> set[int]:
        """Items that are recorded as done."""
        return {row[0] for row in self.connection.execute(DONE)}
