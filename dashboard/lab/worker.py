"""A worker of a run: its plan, its ledger, and its work.

The plan is checked before anything starts; the same seed gives the same plan. The ledger records what really happened,
on a second connection in autocommit: no rollback or kill undoes it.
"""

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import psycopg
from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend

from dashboard.lab.schema import LabRefused

# (minimum, maximum) of each number.
LIMITS = {
    "workers": (1, 16),
    "items": (1, 20_000),
    "work_ms": (0, 5_000),
    "kill": (0, 20),
    "outside_lockers": (0, 8),
    "remote_ms": (0, 10_000),
    "seed": (0, 2**31 - 1),
    "seconds": (1, 600),
}


@dataclass(frozen=True)
class Plan:
    """The parameters of one run.

    Args:
        pattern: its name in `dashboard.lab.patterns`.
        workers: processes that start together.
        items: rows to handle, or operations on the accounts.
        work_ms: duration of each item's work, while the pattern holds its locks.
        kill: number of workers ended with SIGKILL, at moments that `seed` decides; each is replaced.
        outside_lockers: processes of another kind that lock and change the same rows.
        remote_ms: duration of a slow call to another service, which cannot be rolled back.
        seconds: maximum duration of the run.
        alongside: start even if another run is active on this database; the numbers of both suffer.
    """

    pattern: str
    workers: int = 4
    items: int = 200
    work_ms: int = 5
    kill: int = 0
    outside_lockers: int = 0
    remote_ms: int = 0
    seed: int = 1
    seconds: int = 60
    alongside: bool = False

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise LabRefused(f"{name.replace('_', ' ')} is a number from {least} to {most}, not {value}.")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def kills(self) -> list[tuple[int, int]]:
        """The kills in order, as (number of effects before it, number of the worker).

        >>> Plan("unsafe", items=100, kill=2, seed=7).kills() == Plan("unsafe", items=100, kill=2, seed=7).kills()
        True
        """
        chance = random.Random(self.seed)  # noqa: S311  # nosec B311  the same seed, the same plan
        # Not before the first effect has begun: no worker would be in the middle of one.
        moments = sorted(max(1, int(self.items * chance.uniform(0.05, 0.7))) for _ in range(self.kill))
        return [(moment, chance.randrange(self.workers)) for moment in moments]


CREATE_LEDGER = """
CREATE TABLE lab_ledger (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL, worker int NOT NULL, item bigint, process int NOT NULL DEFAULT pg_backend_pid(),
    began timestamptz NOT NULL DEFAULT clock_timestamp(), ended timestamptz,
    wait_ms float8 NOT NULL DEFAULT 0, lost_races int NOT NULL DEFAULT 0, retries int NOT NULL DEFAULT 0,
    queries int NOT NULL DEFAULT 0
);
CREATE TABLE lab_statement (statement text NOT NULL, number int NOT NULL)
"""
EMPTY_LEDGER = "TRUNCATE lab_ledger, lab_statement"
KEEP_STATEMENTS = "INSERT INTO lab_statement SELECT * FROM unnest(%(statements)s::text[], %(numbers)s::int[])"
BEGIN_LINE = """
INSERT INTO lab_ledger (kind, worker, item, ended, wait_ms, lost_races, retries, queries)
VALUES (%(kind)s, %(worker)s, %(item)s, CASE WHEN %(is_over)s::boolean THEN clock_timestamp() END,
    %(wait_ms)s, %(lost_races)s, %(retries)s, %(queries)s)
RETURNING id
"""
END_LINE = "UPDATE lab_ledger SET ended = clock_timestamp() WHERE id = %(id)s"

ITEMS_DONE = "SELECT DISTINCT item FROM lab_ledger WHERE kind = 'effect'"


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
        self.connection.execute(END_LINE, {"id": line})

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
        [(line,)] = self.connection.execute(BEGIN_LINE, params).fetchall()
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
        self.connection.execute(KEEP_STATEMENTS, {"statements": list(statements), "numbers": list(statements.values())})

    def items_done(self) -> set[int]:
        """Items that are recorded as done."""
        return {row[0] for row in self.connection.execute(ITEMS_DONE)}


MOST_STATEMENTS = 30  # different ones
WAITS = ("FOR UPDATE", "FOR NO KEY UPDATE", "UPDATE ", "SELECT pg_advisory_lock")


@dataclass
class Worker:
    """One worker's plan, number and ledger."""

    plan: Plan
    number: int
    ledger: Ledger
    statements: Counter[str] = field(default_factory=Counter)

    def work(self, item: int, kind: str = "effect") -> None:
        """Do the item: record it outside the database, sleep for the work, and make the plan's slow call.

        No rollback undoes the call. `kind`: "attempt" if the effect is recorded by itself, after success.
        """
        with self.ledger.effect(item, kind):
            time.sleep(self.plan.work_ms / 1000)
        if self.plan.remote_ms:
            with self.ledger.effect(item, "remote"):
                time.sleep(self.plan.remote_ms / 1000)

    def count(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        """An execute wrapper for Django: counts statements, and the time of those that may have to wait."""
        self.ledger.queries += 1
        if len(self.statements) < MOST_STATEMENTS or str(sql) in self.statements:
            self.statements[str(sql)] += 1
        if not any(word in str(sql) for word in WAITS):
            return execute(sql, params, many, context)
        with self.ledger.waiting():
            return execute(sql, params, many, context)


ORDER = re.compile(r"<order-(\d+)-shipped@")
_workers: list[Worker] = []  # at most one in each process


def deliver_to(worker: Worker) -> None:
    """From now on, record every message of this process in this worker's ledger."""
    _workers[:] = [worker]


class LedgerBackend(BaseEmailBackend):
    """Accepts everything and sends nothing; the order's number comes from the Message-ID."""

    last_reply = "250 noted in the ledger"

    def send_messages(self, messages: Sequence[EmailMessage]) -> int:
        for message in messages:
            if (order := order_of(message)) is not None:
                _workers[0].work(order)
        return len(messages)


def order_of(message: EmailMessage) -> int | None:
    """The order of a message; None for other e-mails, which are effects of a registered pattern."""
    headers: dict[str, Any] = message.extra_headers
    found = ORDER.match(headers.get("Message-ID", ""))
    return int(found[1]) if found else None
