"""`/metrics` for Prometheus, read from the database, so that every process reports the same.

A section that the database does not answer in time is left out and counted in `rowlock_scrape_errors`. So lock waits
are still reported while a migration holds the table of tasks.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from typing import Any

from django.db import DatabaseError, InterfaceError, OperationalError, close_old_connections, connection
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dashboard import conf
from dashboard.live import snapshots
from tasks import panels
from tasks.diagnosis import stats
from tasks.diagnosis.stats import Numbers, QueueNumbers
from tasks.exceptions import RowlockError
from tasks.panels import Snapshot
from tasks.queue import throughput
from tasks.queue.presence import Life
from tasks.schedule import expectations
from tasks.support import tracing
from tasks.support.database import fetch, sqlstate

logger = logging.getLogger(__name__)
SEE = "tasks.view_task"
CLOSED = (
    "This page needs the token in METRICS_TOKEN (Authorization: Bearer ...), or the login of a member of staff "
    f"with the right {SEE}.\n"
)
LONGEST = 120
MOST = 100
STATES = ("ready", "scheduled", "processing", "stale", "failed")
OUTCOMES = ("failed", "abandoned", "timed_out", "released")
LOCK_TYPES = ("relation", "transactionid", "tuple", "advisory")
# Statement timeout, lock timeout, deadlock.
GAVE_UP = ("57014", "55P03", "40P01")

# No pg_blocking_pids(): a count needs only that a session waits, and the call is expensive when many do.
SESSIONS = """
SELECT count(*) AS number,
    count(*) FILTER (WHERE wait_event_type = 'Lock') AS blocked,
    count(*) FILTER (WHERE state = 'active') AS active,
    count(*) FILTER (WHERE state = 'idle') AS idle,
    count(*) FILTER (WHERE state LIKE 'idle in transaction%') AS idle_in_transaction,
    count(*) FILTER (WHERE query = '<insufficient privilege>') AS hidden,
    coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 AS transaction_seconds,
    coalesce(max(extract(epoch FROM clock_timestamp() - state_change))
        FILTER (WHERE state LIKE 'idle in transaction%'), 0)::float8 AS idle_seconds,
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


def gauges(name: str, text: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    """One gauge with the value of each tuple of labels."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for combination, value in values.items():
        family.add_metric(combination, value)
    return family


@cache
def query(statement: str) -> Callable[[], list[dict[str, Any]]]:
    """The query of a statement. It is one object per statement, because results are cached by their callable."""
    return partial(fetch, connection, statement)


def queues(snapshot: Snapshot) -> Iterator[Metric]:
    """Series for the most important queues, and the number of queues left out."""
    numbers = snapshot.once(stats.collect)
    shown = {label(queue.name): queue for queue in shown_queues(numbers)}
    depths = {(name, state): getattr(queue, state) for name, queue in shown.items() for state in STATES}
    yield gauges("rowlock_queue_tasks", "Tasks of a queue by state.", ["queue", "state"], depths)
    ages = {(name,): queue.oldest_ready_seconds or 0 for name, queue in shown.items()}
    paused = {(name,): queue.paused for name, queue in shown.items()}
    serving = {(name,): len(numbers.servers(queue.name)) for name, queue in shown.items()}
    asks = {(name,): queue.asks_a_person for name, queue in shown.items()}
    text = "Since when the oldest due task waits; 0 when none does."
    yield gauges("rowlock_queue_oldest_ready_seconds", text, ["queue"], ages)
    yield gauges("rowlock_queue_paused", "1 while nothing is claimed from it.", ["queue"], paused)
    yield gauges("rowlock_queue_live_workers", "Live workers that serve it.", ["queue"], serving)
    yield gauges("rowlock_queue_asks", "1 where a person decides about stale tasks.", ["queue"], asks)
    hidden = len(numbers.queues) - len(shown)
    yield GaugeMetricFamily("rowlock_queues_hidden", "Queues that have no series here: too many.", value=hidden)


def shown_queues(numbers: Numbers) -> list[QueueNumbers]:
    """The shown queues: first those that a worker names or a person configured, then the busiest."""
    named = {name for worker in numbers.workers for name in worker.queues or ()}

    def rank(queue: QueueNumbers) -> tuple[bool, int, str]:
        is_ours = queue.name in named or queue.paused or queue.asks_a_person or queue.name == "default"
        return not is_ours, -(queue.completed_last_hour + queue.processing + queue.ready), queue.name

    return sorted(numbers.queues, key=rank)[:MOST]


def workers(snapshot: Snapshot) -> Iterator[Metric]:
    """Workers by state; every state is always present."""
    found = snapshot.once(stats.collect).workers
    lives = {(str(life),): sum(worker.life is life for worker in found) for life in Life}
    yield gauges("rowlock_workers", "Workers by life; the dead while they hold tasks.", ["life"], lives)
    oldest = max((worker.heartbeat_age_seconds or 0 for worker in found if worker.is_alive), default=0)
    yield GaugeMetricFamily("rowlock_oldest_heartbeat_seconds", "The oldest heartbeat of a live worker.", value=oldest)


def finished(snapshot: Snapshot) -> Iterator[Metric]:
    """Counters and histograms from the rollup, which only grow."""
    totals = snapshot.once(throughput.totals)
    ranked = sorted(totals, key=lambda total: (-total.completed - total.failed, total.queue_name))
    outcomes = CounterMetricFamily(
        "rowlock_attempts_finished", "Attempts that ended under a living worker.", labels=["queue", "outcome"]
    )
    run = HistogramMetricFamily("rowlock_run_seconds", "How long completed tasks ran.", labels=["queue"])
    wait = HistogramMetricFamily("rowlock_claim_seconds", "From due to started, of completed tasks.", labels=["queue"])
    for total in ranked[:MOST]:
        name = label(total.queue_name)
        outcomes.add_metric([name, "completed"], total.completed)
        outcomes.add_metric([name, "failed"], total.failed)
        run.add_metric([name], buckets(total.run_buckets), sum_value=total.run_seconds)
        wait.add_metric([name], buckets(total.wait_buckets), sum_value=total.wait_seconds)
    yield from (outcomes, run, wait)


def buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Cumulative counts, as Prometheus expects them.

    >>> buckets([1, 2])[:3], buckets([1, 2])[-1]
    ([('0.005', 1), ('0.01', 3), ('0.025', 3)], ('+Inf', 3))
    """
    bounds = [*map(str, throughput.BOUNDS_SECONDS), "+Inf"]
    return [(bound, sum(counts[: number + 1])) for number, bound in enumerate(bounds)]


def sessions(snapshot: Snapshot) -> Iterator[Metric]:
    """Sessions of this database except the scrape's own. Times are 0 if this role may not see other sessions."""
    found = snapshot.once(query(SESSIONS))[0]
    states = {(state,): found[state] for state in ("active", "idle", "idle_in_transaction", "hidden")}
    yield gauges("rowlock_sessions", "Sessions of this database by state.", ["state"], states)
    for name, text, value in (
        ("rowlock_blocked_sessions", "Sessions that wait for a lock.", found["blocked"]),
        ("rowlock_longest_transaction_seconds", "The oldest open transaction.", found["transaction_seconds"]),
        ("rowlock_longest_idle_in_transaction_seconds", "The longest idle in transaction.", found["idle_seconds"]),
        ("rowlock_connections_limit", "max_connections of the server.", found["limit"]),
    ):
        yield GaugeMetricFamily(name, text, value=value)


def lock_waits(snapshot: Snapshot) -> Iterator[Metric]:
    """Lock waits by type, on the whole server; the usual types are always present."""
    rows = snapshot.once(query(LOCK_WAITS))
    numbers = dict.fromkeys(LOCK_TYPES, 0) | {row["locktype"]: row["number"] for row in rows}
    waits = {(locktype,): numbers[locktype] for locktype in sorted(numbers)}
    yield gauges("rowlock_lock_waits", "Locks that are waited for, by type.", ["locktype"], waits)
    longest = max((row["seconds"] for row in rows), default=0)
    yield GaugeMetricFamily("rowlock_longest_lock_wait_seconds", "The longest wait for a lock.", value=longest)


def deadlocks(snapshot: Snapshot) -> Iterator[Metric]:
    number = snapshot.once(query(DEADLOCKS))[0]["deadlocks"]
    yield CounterMetricFamily("rowlock_deadlocks", "Deadlocks that PostgreSQL broke in this database.", value=number)


def latest_attempts(snapshot: Snapshot) -> Iterator[Metric]:
    """Attempts of the last hour that did not succeed, by outcome; recovery took back the `abandoned` ones."""
    counted = {row["outcome"]: row["number"] for row in snapshot.once(query(LATEST_ATTEMPTS))}
    text = "Unsuccessful attempts of the last hour (of the latest 10,000)."
    ended = {(outcome,): counted.get(outcome, 0) for outcome in OUTCOMES}
    yield gauges("rowlock_attempts_last_hour", text, ["outcome"], ended)
    recovered = counted.get("abandoned", 0)
    yield GaugeMetricFamily("rowlock_recoveries_last_hour", "Tasks taken back from dead workers.", value=recovered)


def refused_writes(snapshot: Snapshot) -> Iterator[Metric]:
    number = snapshot.once(query(REFUSED_WRITES))[0]["number"]
    text = "Late writes that the fence refused (of the latest 10,000)."
    yield GaugeMetricFamily("rowlock_refused_writes_last_hour", text, value=number)


def commands(snapshot: Snapshot) -> Iterator[Metric]:
    """Overdue seconds of each overdue command. Raises LockUnavailable if Redis keeps the locks and is down."""
    overdue = snapshot.once(expectations.overdue)
    yield GaugeMetricFamily("rowlock_commands_overdue", "Expected commands that did not run.", value=len(overdue))
    late = {(label(one.name),): one.overdue_seconds for one in overdue[:MOST]}
    yield gauges("rowlock_command_overdue_seconds", "How long ago it should have begun.", ["command"], late)


def named_locks(snapshot: Snapshot) -> Iterator[Metric]:
    counted = snapshot.once(query(NAMED_LOCKS))[0]
    states = {("held",): counted["held"] - counted["expired"], ("expired",): counted["expired"]}
    yield gauges("rowlock_named_locks", "Named locks that somebody holds.", ["state"], states)


def registered(source: panels.GaugeSource, snapshot: Snapshot) -> Iterator[Metric]:
    """The gauges that an app adds."""
    return (gauges(*gauge) for gauge in source(snapshot))


SECTIONS: dict[str, Callable[[Snapshot], Iterable[Metric]]] = {
    "queues": queues,
    "workers": workers,
    "finished": finished,
    "attempts": latest_attempts,
    "refused_writes": refused_writes,
    "commands": commands,
    "named_locks": named_locks,
    "sessions": sessions,
    "lock_waits": lock_waits,
    "deadlocks": deadlocks,
}


class DatabaseCollector(Collector):
    """Collects every section from the snapshot that all pages of this second share."""

    def collect(self) -> Iterator[Metric]:
        errors: dict[tuple[str, ...], float] = {}
        snapshot = snapshots.current()
        panels.load()
        added = {app: partial(registered, source) for app, source in panels.GAUGES.items()}
        for name, section in (SECTIONS | added).items():
            try:
                found = list(section(snapshot))
            except (DatabaseError, RowlockError) as error:
                if is_away(error):
                    raise
                logger.warning("/metrics left out its section %s: %s", name, error)
                errors[name,] = 1
            else:
                errors[name,] = 0
                yield from found
        text = "1 for each section that the database did not answer."
        yield gauges("rowlock_scrape_errors", text, ["section"], errors)


# The gauges that OpenTelemetry observes, by section.
OBSERVED = {
    "queues": ("rowlock_queue_tasks", "rowlock_queue_oldest_ready_seconds", "rowlock_queue_live_workers"),
    "workers": ("rowlock_workers", "rowlock_oldest_heartbeat_seconds"),
    "attempts": ("rowlock_attempts_last_hour",),
    "commands": ("rowlock_commands_overdue",),
    "sessions": ("rowlock_sessions", "rowlock_blocked_sessions", "rowlock_longest_transaction_seconds"),
    "lock_waits": ("rowlock_lock_waits", "rowlock_longest_lock_wait_seconds"),
}


def observe(provider: Any = None) -> None:
    """Offer these gauges to OpenTelemetry's meter provider, the global one by default; nothing without the extra."""
    if tracing.api() is None:
        return
    from opentelemetry import metrics as otel

    meter = otel.get_meter("rowlock", meter_provider=provider)
    for section, names in OBSERVED.items():
        for name in names:
            callback = partial(observed, otel.Observation, section, name)
            meter.create_observable_gauge(name.replace("rowlock_", "rowlock.", 1), callbacks=[callback])


def observed(make: Callable[..., Any], section: str, name: str, options: Any) -> list[Any]:
    """The values of one gauge now; none if the database does not answer in time."""
    try:
        found = [family for family in SECTIONS[section](snapshots.current()) if family.name == name]
    except (DatabaseError, RowlockError) as error:
        logger.warning("OpenTelemetry gets no %s: %s", name, error)
        return []
    finally:
        close_old_connections()
    return [make(sample.value, sample.labels) for family in found for sample in family.samples]


def is_away(error: Exception) -> bool:
    """True if the database cannot be reached: then the scrape fails, and Prometheus shows the target as down.

    Only the error decides, because another thread may have met it while this connection is closed.
    """
    is_operational = isinstance(error, OperationalError)
    return isinstance(error, InterfaceError) or (is_operational and sqlstate(error) not in GAVE_UP)


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Serve a scrape to Prometheus with its token, and to staff who may see tasks; else 401 or, with a login, 403."""
    if has_token(request) or (request.user.is_active and request.user.is_staff and request.user.has_perm(SEE)):
        return HttpResponse(generate_latest(DatabaseCollector()), content_type=CONTENT_TYPE_LATEST)
    status = 403 if request.user.is_authenticated else 401
    headers = {} if status == 403 else {"WWW-Authenticate": 'Bearer realm="metrics"'}
    return HttpResponse(CLOSED, status=status, content_type="text/plain; charset=utf-8", headers=headers)


def has_token(request: HttpRequest) -> bool:
    """True if the request has the token; always False if the setting is empty."""
    expected: str = conf.get("METRICS_TOKEN")
    scheme, _space, token = request.headers.get("Authorization", "").partition(" ")
    return bool(expected) and scheme.lower() == "bearer" and constant_time_compare(token.strip(), expected)
