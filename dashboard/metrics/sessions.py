"""Metrics of database sessions: lock waits, open transactions, deadlocks."""

from collections.abc import Iterator
from typing import Any

from django.db import connection
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from tasks.database import fetch
from tasks.panels import Look

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
