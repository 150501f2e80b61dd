"""The tools of a pattern while it runs in a worker process."""

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend

from dashboard.lab.ledger import Ledger
from dashboard.lab.plan import Plan

MOST_STATEMENTS = 30  # different ones
WAITS = ("FOR UPDATE", "FOR NO KEY UPDATE", "UPDATE ", "SELECT pg_advisory_lock")


@dataclass
class Bench:
    """One worker's plan, number and ledger."""

    plan: Plan
    number: int
    ledger: Ledger
    statements: Counter[str] = field(default_factory=Counter)

    def work(self, item: int) -> None:
        """Do the item: record an effect outside the database, sleep for the work, and make the plan's slow call."""
        with self.ledger.effect(item):
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
_benches: list[Bench] = []  # at most one in each process


def deliver_to(bench: Bench) -> None:
    """From now on, record every message of this process on this bench."""
    _benches[:] = [bench]


class LedgerBackend(BaseEmailBackend):
    """Accepts everything and sends nothing; the order's number comes from the Message-ID."""

    last_reply = "250 noted in the ledger"

    def send_messages(self, messages: Sequence[EmailMessage]) -> int:
        for message in messages:
            if (order := order_of(message)) is not None:
                _benches[0].work(order)
        return len(messages)


def order_of(message: EmailMessage) -> int | None:
    """The order of a message; None for other e-mails, which are effects of a registered pattern."""
    headers: dict[str, Any] = message.extra_headers
    found = ORDER.match(headers.get("Message-ID", ""))
    return int(found[1]) if found else None
