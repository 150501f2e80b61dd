"""Prometheus metrics, read from the database, so that every process reports the same.

A section that the database does not answer in time is left out and counted in `rowlock_scrape_errors`. So lock waits
are still reported while a migration holds the table of tasks.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

from django.apps import apps
from django.db import DatabaseError, InterfaceError, OperationalError, connection
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dashboard.live import snapshot
from tasks.diagnosis import stats
from tasks.diagnosis.stats import Numbers, QueueNumbers
from tasks.exceptions import RowlockError
from tasks.panels import Look
from tasks.queue import throughput
from tasks.queue.presence import Life
from tasks.queue.throughput import Total
from tasks.schedule import expectations
from tasks.support.database import fetch

LONGEST = 120
MOST = 100


def label(text: str) -> str:
    """Turn text into a label: short, printable, and different for different texts.

    Two series of one name would break the scrape. Control and bidirectional characters would act on the terminal or
    page that shows the label.

    >>> label("default"), len(label("x" * 500)), label("x" * 500) == label("x" * 501)
    ('default', 120, False)
    >>> label("a\\x1b[2Jb")
    'a?[2Jb~ba68753a5de2ee16'
    """
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    if shown == text and len(text) <= LONGEST:
        return text
    return f"{shown[: LONGEST - 17]}~{sha256(text.encode()).hexdigest()[:16]}"


def kept(ranked: Iterable[str]) -> list[str]:
    return list(ranked)[:MOST]


STATES = ("ready", "scheduled", "processing", "stale", "failed")


def depths(look: Look) -> Iterator[Metric]:
    """Series for the most important queues, and the number of queues left out."""
    numbers = look.once(stats.collect)
    shown = shown_queues(numbers)
    depth = GaugeMetricFamily("rowlock_queue_tasks", "Tasks of a queue by state.", labels=["queue", "state"])
    age = GaugeMetricFamily(
        "rowlock_queue_oldest_ready_seconds",
        "Since when the oldest due task waits; 0 when none does.",
        labels=["queue"],
    )
    paused = GaugeMetricFamily("rowlock_queue_paused", "1 while nothing is claimed from it.", labels=["queue"])
    serving = GaugeMetricFamily("rowlock_queue_live_workers", "Live workers that serve it.", labels=["queue"])
    asks = GaugeMetricFamily("rowlock_queue_asks", "1 when its stale tasks wait for a person.", labels=["queue"])
    for queue in shown:
        name = label(queue.name)
        for state in STATES:
            depth.add_metric([name, state], getattr(queue, state))
        age.add_metric([name], queue.oldest_ready_seconds or 0)
        paused.add_metric([name], queue.paused)
        serving.add_metric([name], len(numbers.servers(queue.name)))
        asks.add_metric([name], queue.asks_a_person)
    yield from (depth, age, paused, serving, asks)
    yield GaugeMetricFamily(
        "rowlock_queues_hidden", "Queues that have no series here: too many.", value=len(numbers.queues) - len(shown)
    )


def shown_queues(numbers: Numbers) -> list[QueueNumbers]:
    """The shown queues: first those that a worker names or a person configured, then the busiest."""
    named = {name for worker in numbers.workers for name in worker.queues or ()}

    def rank(queue: QueueNumbers) -> tuple[bool, int, str]:
        is_ours = queue.name in named or queue.paused or queue.asks_a_person or queue.name == "default"
        return not is_ours, -(queue.completed_last_hour + queue.processing + queue.ready), queue.name

    ranked = sorted(numbers.queues, key=rank)
    names = set(kept(queue.name for queue in ranked))
    return [queue for queue in ranked if queue.name in names]


def workers(look: Look) -> Iterator[Metric]:
    """Workers by state; every state is always present."""
    numbers = look.once(stats.collect)
    life = GaugeMetricFamily("rowlock_workers", "Workers by life; the dead while they hold tasks.", labels=["life"])
    for state in Life:
        life.add_metric([state], sum(worker.life is state for worker in numbers.workers))
    yield life
    beats = [worker.heartbeat_age_seconds or 0 for worker in numbers.workers if worker.is_alive]
    yield GaugeMetricFamily(
        "rowlock_oldest_heartbeat_seconds", "The oldest heartbeat of a live worker.", value=max(beats, default=0)
    )


def finished(look: Look) -> Iterator[Metric]:
    """Counters and histograms from the rollup, which only grow."""
    ranked = sorted(look.once(throughput.totals), key=lambda total: (-total.completed - total.failed, total.queue_name))
    names = set(kept(total.queue_name for total in ranked))
    shown = [total for total in ranked if total.queue_name in names]
    outcomes = CounterMetricFamily(
        "rowlock_attempts_finished", "Attempts that ended under a living worker.", labels=["queue", "outcome"]
    )
    run = HistogramMetricFamily("rowlock_run_seconds", "How long completed tasks ran.", labels=["queue"])
    wait = HistogramMetricFamily("rowlock_claim_seconds", "From due to started, of completed tasks.", labels=["queue"])
    for total in shown:
        _add(total, outcomes, run, wait)
    yield from (outcomes, run, wait)


def _add(total: Total, outcomes: CounterMetricFamily, run: HistogramMetricFamily, wait: HistogramMetricFamily) -> None:
    name = label(total.queue_name)
    outcomes.add_metric([name, "completed"], total.completed)
    outcomes.add_metric([name, "failed"], total.failed)
    run.add_metric([name], buckets(total.run_buckets), sum_value=total.run_seconds)
    wait.add_metric([name], buckets(total.wait_buckets), sum_value=total.wait_seconds)


def buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Cumulative counts, as Prometheus expects them.

    >>> buckets([1, 2])[:3], buckets([1, 2])[-1]
    ([('0.005', 1), ('0.01', 3), ('0.025', 3)], ('+Inf', 3))
    """
    bounds = [*map(str, throughput.BOUNDS_SECONDS), "+Inf"]
    return [(bound, sum(counts[: number + 1])) for number, bound in enumerate(bounds)]


# No pg_blocking_pids(): a count needs only that a session waits, and the call is expensive when many do.
SESSIONS = """
SELECT count(*) AS number,
    count(*) FILTER (WHERE wait_event_type = 'Lock') AS blocked,
    count(*) FILTER (WHERE state = 'active') AS active,
    count(*) FILTER (WHERE state = 'idle') AS idle,
    count(*) FILTER (WHERE state LIKE 'idle in transaction%%') AS idle_in_transaction,
    count(*) FILTER (WHERE query = '<insufficient privilege>') AS hidden,
    coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 AS transaction_seconds,
    coalesce(max(extract(epoch FROM clock_timestamp() - state_change))
        FILTER (WHERE state LIKE 'idle in transaction%%'), 0)::float8 AS idle_seconds,
    current_setting('max_connections')::int AS limit
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
LOCK_WAITS = """
SELECT locktype, count(*) AS number,
    coalesce(max(extract(epoch FROM clock_timestamp() - waitstart)), 0)::float8 AS seconds
FROM pg_locks WHERE NOT granted GROUP BY locktype
"""
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
LOCK_TYPES = ("relation", "transactionid", "tuple", "advisory")


def ask_sessions() -> dict[str, Any]:
    return fetch(connection, SESSIONS, {})[0]


def ask_lock_waits() -> list[dict[str, Any]]:
    return fetch(connection, LOCK_WAITS)


def ask_deadlocks() -> int:
    number: int = fetch(connection, DEADLOCKS)[0]["deadlocks"]
    return number


def sessions(look: Look) -> Iterator[Metric]:
    """Sessions of this database except the scrape's own. Times are 0 if this role may not see other sessions."""
    found = look.once(ask_sessions)
    states = GaugeMetricFamily("rowlock_sessions", "Sessions of this database by state.", labels=["state"])
    for state in ("active", "idle", "idle_in_transaction", "hidden"):
        states.add_metric([state], found[state])
    yield states
    for name, told, value in (
        ("rowlock_blocked_sessions", "Sessions that wait for a lock.", found["blocked"]),
        ("rowlock_longest_transaction_seconds", "The oldest open transaction.", found["transaction_seconds"]),
        ("rowlock_longest_idle_in_transaction_seconds", "The longest idle in transaction.", found["idle_seconds"]),
        ("rowlock_connections_limit", "max_connections of the server.", found["limit"]),
    ):
        yield GaugeMetricFamily(name, told, value=value)


def lock_waits(look: Look) -> Iterator[Metric]:
    """Lock waits by type, on the whole server; the usual types are always present."""
    rows = {row["locktype"]: row for row in look.once(ask_lock_waits)}
    waits = GaugeMetricFamily("rowlock_lock_waits", "Locks that are waited for, by type.", labels=["locktype"])
    for locktype in sorted({*LOCK_TYPES, *rows}):
        waits.add_metric([locktype], rows[locktype]["number"] if locktype in rows else 0)
    yield waits
    longest = max((row["seconds"] for row in rows.values()), default=0)
    yield GaugeMetricFamily("rowlock_longest_lock_wait_seconds", "The longest wait for a lock.", value=longest)


def deadlocks(look: Look) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "rowlock_deadlocks", "Deadlocks that PostgreSQL broke in this database.", value=look.once(ask_deadlocks)
    )


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


logger = logging.getLogger(__name__)
# Statement timeout, lock timeout, deadlock.
GAVE_UP = ("57014", "55P03", "40P01")
Section = Callable[[Look], Iterable[Metric]]
SECTIONS: dict[str, Section] = {
    "queues": depths,
    "workers": workers,
    "finished": finished,
    "attempts": latest_attempts,
    "refused_writes": refused_writes,
    "commands": commands,
    "named_locks": named_locks,
    "orders": orders,
    "sessions": sessions,
    "lock_waits": lock_waits,
    "deadlocks": deadlocks,
}


class DatabaseCollector(Collector):
    """Collects every section from the snapshot that all pages of this second share."""

    def collect(self) -> Iterator[Metric]:
        errors = GaugeMetricFamily(
            "rowlock_scrape_errors", "1 for each section that the database did not answer.", labels=["section"]
        )
        look = snapshot.current()
        for name, section in SECTIONS.items():
            try:
                found = list(section(look))
            except (DatabaseError, RowlockError) as error:
                if is_away(error):
                    raise
                logger.warning("/metrics left out its section %s: %s", name, error)
                found = []
                errors.add_metric([name], 1)
            else:
                errors.add_metric([name], 0)
            yield from found
        yield errors

    def describe(self) -> list[Metric]:
        """Empty: registering must not query the database."""
        return []


def is_away(error: Exception) -> bool:
    """True if the database cannot be reached: then the scrape fails, and Prometheus shows the target as down.

    Only the error decides, because another thread may have met it while this connection is closed.
    """
    is_operational = isinstance(error, OperationalError)
    return isinstance(error, InterfaceError) or (
        is_operational and getattr(error.__cause__, "sqlstate", None) not in GAVE_UP
    )


registry = CollectorRegistry(auto_describe=False)
registry.register(DatabaseCollector())


def exposition() -> bytes:
    """One scrape in Prometheus' text format."""
    return generate_latest(registry)
