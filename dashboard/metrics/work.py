"""Metrics of recent failures, overdue commands, named locks and e-mails."""

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.db import connection
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from dashboard.metrics.labels import kept, label
from tasks.database import fetch
from tasks.panels import Look
from tasks.schedule import expectations

# The last hour among the latest ids, because an index on time would burden every write. Gauges, because pruning would
# make a counter fall.
LATEST_ATTEMPTS = """
SELECT outcome, count(*) AS number FROM (
    SELECT outcome, finished_at FROM tasks_attempt ORDER BY id DESC LIMIT 10000
) AS latest
WHERE finished_at > statement_timestamp() - interval '1 hour' GROUP BY outcome
"""
REFUSED_WRITES = """
SELECT count(*) AS number FROM (SELECT at FROM tasks_refusedwrite ORDER BY id DESC LIMIT 10000) AS latest
WHERE at > statement_timestamp() - interval '1 hour'
"""
NAMED_LOCKS = """
SELECT count(*) AS held, count(*) FILTER (WHERE expires_at < clock_timestamp()) AS expired
FROM (SELECT expires_at FROM tasks_lock WHERE owner IS NOT NULL LIMIT 10000) AS held
"""
CAP = 10_000
OUTCOMES = ("failed", "abandoned", "timed_out", "released")


def ask_attempts() -> list[dict[str, Any]]:
    return fetch(connection, LATEST_ATTEMPTS)


def ask_refused_writes() -> int:
    number: int = fetch(connection, REFUSED_WRITES)[0]["number"]
    return number


def ask_named_locks() -> dict[str, Any]:
    return fetch(connection, NAMED_LOCKS)[0]


def latest_attempts(look: Look) -> Iterator[Metric]:
    """Attempts of the last hour that did not succeed, by outcome; recovery took back the `abandoned` ones."""
    counted = {row["outcome"]: row["number"] for row in look.once(ask_attempts)}
    ended = GaugeMetricFamily(
        "rowlock_attempts_last_hour",
        "Unsuccessful attempts of the last hour (of the latest 10,000).",
        labels=["outcome"],
    )
    for outcome in OUTCOMES:
        ended.add_metric([outcome], counted.get(outcome, 0))
    yield ended
    yield GaugeMetricFamily(
        "rowlock_recoveries_last_hour", "Tasks taken back from dead workers.", value=counted.get("abandoned", 0)
    )


def refused_writes(look: Look) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "rowlock_refused_writes_last_hour",
        "Late writes that the fence refused (of the latest 10,000).",
        value=look.once(ask_refused_writes),
    )


def commands(look: Look) -> Iterator[Metric]:
    """Overdue seconds of each overdue command. Raises LockUnavailable if Redis keeps the locks and is down."""
    overdue = look.once(expectations.overdue)
    yield GaugeMetricFamily("rowlock_commands_overdue", "Expected commands that did not run.", value=len(overdue))
    late = GaugeMetricFamily(
        "rowlock_command_overdue_seconds", "How long ago it should have begun.", labels=["command"]
    )
    names = set(kept(expectation.name for expectation in overdue))
    for expectation in overdue:
        if expectation.name in names:
            late.add_metric([label(expectation.name)], expectation.overdue_seconds)
    yield late


def named_locks(look: Look) -> Iterator[Metric]:
    counted = look.once(ask_named_locks)
    held = GaugeMetricFamily("rowlock_named_locks", "Named locks that somebody holds.", labels=["state"])
    held.add_metric(["held"], counted["held"] - counted["expired"])
    held.add_metric(["expired"], counted["expired"])
    yield held


def orders(look: Look) -> Iterator[Metric]:
    """E-mails to send, and those that may or may not have been sent; empty without the app `orders`."""
    if not apps.is_installed("orders"):
        return
    waiting, unknown = look.once(ask_orders)
    mails = GaugeMetricFamily("rowlock_order_emails", "E-mails of shipped orders (up to 10,000).", labels=["state"])
    mails.add_metric(["to_send"], waiting)
    mails.add_metric(["unknown"], unknown)
    yield mails


def ask_orders() -> tuple[int, int]:
    from orders.models import Order  # only where that app is installed

    waiting, unknown = Order.objects.to_mail(), Order.objects.of_unknown_fate()
    return waiting.order_by()[:CAP].count(), unknown.order_by()[:CAP].count()
