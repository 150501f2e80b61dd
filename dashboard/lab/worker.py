"""A process of a run: its plan, its ledger, and its work.

The plan is checked before anything starts; the same seed gives the same plan. The ledger records what really happened,
on a second connection in autocommit: no rollback or kill undoes it.
"""

import json
import random
import re
import socket
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

import psycopg
from django.conf import settings
from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend
from django.db import connection, connections, transaction

from dashboard.lab.schema import LabRefused
from tasks.compat import MAILERS_IN_DJANGO
from tasks.locking import Report
from tasks.support.database import fetch, session_name, sqlstate

# (minimum, maximum) of each number.
LIMITS = {
    "workers": (1, 16),
    "items": (1, 20_000),
    "work_ms": (0, 5_000),
    "kill": (0, 20),
    "cut": (0, 20),
    "outside_lockers": (0, 8),
    "remote_ms": (0, 10_000),
    "seed": (0, 2**31 - 1),
    "seconds": (1, 600),
}
VARIED = ("workers", "work_ms", "items", "outside_lockers", "remote_ms", "kill")  # numbers that a sweep may vary


@dataclass(frozen=True)
class Plan:
    """The parameters of one run."""

    pattern: str  # its name in `dashboard.lab.patterns`
    workers: int = 4  # processes that start together
    items: int = 200  # rows to handle, or operations on the accounts
    work_ms: int = 5  # duration of each item's work, while the pattern holds its locks
    kill: int = 0  # workers ended with SIGKILL, at moments that `seed` decides; each is replaced
    cut: int = 0  # sessions ended by the server while their process works; the process is replaced once it fails
    outside_lockers: int = 0  # processes of another kind that lock and change the same rows
    remote_ms: int = 0  # duration of a slow call to another service, which cannot be rolled back
    seed: int = 1
    seconds: int = 60  # maximum duration of the run
    alongside: bool = False  # even if another run is active on this database; the numbers of both suffer

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise LabRefused(f"{name.replace('_', ' ')} is a number from {least} to {most}, not {value}.")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def kills(self) -> list[tuple[int, int]]:
        """The kills in order, as (number of effects before it, number of the worker).

        >>> Plan("unsafe", items=100, kill=2, seed=7).kills() == Plan("unsafe", items=100, kill=2, seed=7).kills()
        True
        """
        return self._moments(self.kill, random.Random(self.seed))  # noqa: S311  # nosec B311  a plan, no secret

    def cuts(self) -> list[tuple[int, int]]:
        """The sessions to end, in the form of `kills`."""
        return self._moments(self.cut, random.Random(f"{self.seed}/cut"))  # noqa: S311  # nosec B311  likewise

    def _moments(self, number: int, chance: random.Random) -> list[tuple[int, int]]:
        # Not before the first effect has begun: no worker would be in the middle of one.
        moments = sorted(max(1, int(self.items * chance.uniform(0.05, 0.7))) for _ in range(number))
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

    @contextmanager
    def effect(self, item: int, kind: str = "effect") -> Iterator[None]:
        """An effect outside the transaction: recorded before the block, its end after it."""
        line = self.note(kind, item, is_over=False)
        yield
        self.connection.execute(END_LINE, {"id": line})

    def note(self, kind: str, item: int | None = None, *, is_over: bool = True) -> int:
        """Write one line. Returns its id."""
        counters = {name: getattr(self, name) for name in ("worker", "wait_ms", "lost_races", "retries", "queries")}
        self.wait_ms = 0.0
        params: dict[str, Any] = {"kind": kind, "item": item, "is_over": is_over, **counters}
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

    def note_races(self, report: Report) -> None:
        self.ledger.lost_races = report.lost_races

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
_workers: list[Worker] = []  # at most one in each process, which records the messages that the process sends


class LedgerBackend(BaseEmailBackend):
    """Accepts everything and sends nothing; the order's number comes from the Message-ID.

    An e-mail without one is part of the effect of a registered pattern.
    """

    last_reply = "250 noted in the ledger"

    def send_messages(self, messages: Sequence[EmailMessage]) -> int:
        for message in messages:
            headers: dict[str, Any] = message.extra_headers
            if found := ORDER.match(headers.get("Message-ID", "")):
                _workers[0].work(int(found[1]))
        return len(messages)


LEDGER_BACKEND = "dashboard.lab.worker.LedgerBackend"
LONGEST_ERROR = 300  # characters
SESSION_WAS_ENDED = "57P01"
WITHOUT_SYNC = "-c synchronous_commit=off"  # for the ledger, which should measure and not slow down
CONNECTING = {"dbname", "user", "password", "host", "port", "options", "application_name", "connect_timeout", "sslmode"}


def do_job(channel: socket.socket, patterns: Mapping[str, Any]) -> None:
    """Do the job whose line the channel brings; runs in a process of its own.

    Answers "ready", waits for a line that starts it, and answers "done" or the error.
    """
    lines = channel.makefile()
    try:
        job = json.loads(lines.readline())
        with connected(job) as ledger_connection:
            worker = Worker(Plan(**job["plan"]), job["number"], Ledger(ledger_connection, job["number"]))
            _workers[:] = [worker]
            with connection.execute_wrapper(worker.count):
                connection.ensure_connection()
                channel.sendall(b"ready\n")
                if lines.readline():
                    carry_out(job["role"], patterns[worker.plan.pattern], worker)
        channel.sendall(b"done\n")
    except Exception as error:  # noqa: BLE001  the runner shows its type and message; the log has the traceback
        if sqlstate(error) != SESSION_WAS_ENDED:  # as a cut does
            traceback.print_exc()
        channel.sendall(f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST_ERROR]}\n".encode())


@contextmanager
def connected(job: dict[str, Any]) -> Iterator[psycopg.Connection]:
    """Restrict this process's connections to the lab's schema; yields a second connection in autocommit."""
    wrapper = connections["default"]
    options = {**wrapper.settings_dict["OPTIONS"], "application_name": session_name("lab", job["schema"])}
    options["options"] = f"-c search_path={job['schema']} {job['limits']}"
    wrapper.settings_dict.update(job["database"])
    wrapper.settings_dict["OPTIONS"] = options
    # No e-mail leaves the lab.
    if MAILERS_IN_DJANGO:
        settings.MAILERS = {"default": {"BACKEND": LEDGER_BACKEND}}
    else:
        settings.EMAIL_BACKEND = LEDGER_BACKEND
    params = {key: value for key, value in wrapper.get_connection_params().items() if key in CONNECTING}
    params["options"] = f"{params['options']} {WITHOUT_SYNC}"
    with psycopg.connect(**params, autocommit=True) as ledger_connection:
        yield ledger_connection


def carry_out(role: str, pattern: Any, worker: Worker) -> None:
    """Lock rows from outside, make the sample, or run the pattern, as the role says."""
    worker.ledger.note("start")
    worker.ledger.note("session", connection.connection.info.backend_pid)
    if role == "outside":
        touch_until_over(worker, pattern.rows.touch)
    elif role == "sample":
        pattern.registered.sample(worker.plan.items)
    else:
        pattern.run(worker)
    worker.ledger.note("end")
    worker.ledger.keep(worker.statements)


HOLD_SECONDS = 0.01
PAUSE_SECONDS = 0.02
IS_OVER = "SELECT EXISTS (SELECT FROM lab_ledger WHERE kind = 'over') AS over"


def touch_until_over(worker: Worker, touch: str) -> None:
    """Lock one row after the other, change it, and hold it a moment, until the run is over."""
    chance = random.Random(f"{worker.plan.seed}/{worker.number}")  # noqa: S311  # nosec B311  pauses, no secret
    while not fetch(connection, IS_OVER)[0]["over"]:
        with transaction.atomic():
            [row] = fetch(connection, touch)
            time.sleep(HOLD_SECONDS * chance.random())
        worker.ledger.note("touch", item_of(row["id"]))
        time.sleep(PAUSE_SECONDS * chance.random())


def item_of(key: Any) -> int:
    """The number of a row in the ledger: its key if that is an integer, else a hash.

    >>> item_of(7), item_of("a") == item_of("a"), item_of("a") == item_of("b")
    (7, True, False)
    """
    if isinstance(key, int):
        return key
    return int.from_bytes(blake2b(str(key).encode(), digest_size=7).digest(), "big")
