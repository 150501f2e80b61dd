"""Prometheus metrics, read from the database, so that every process reports the same.

A section that the database does not answer in time is left out and counted in `rowlock_scrape_errors`. So lock waits
are still reported while a migration holds the table of tasks.
"""

import logging
from collections.abc import Callable, Iterable, Iterator

from django.db import DatabaseError, InterfaceError, OperationalError
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dashboard.live import snapshot
from dashboard.metrics import figures
from tasks.exceptions import RowlockError
from tasks.panels import Look

logger = logging.getLogger(__name__)
# Statement timeout, lock timeout, deadlock.
GAVE_UP = ("57014", "55P03", "40P01")
Section = Callable[[Look], Iterable[Metric]]
SECTIONS: dict[str, Section] = {
    "queues": figures.depths,
    "workers": figures.workers,
    "finished": figures.finished,
    "attempts": figures.latest_attempts,
    "refused_writes": figures.refused_writes,
    "commands": figures.commands,
    "named_locks": figures.named_locks,
    "orders": figures.orders,
    "sessions": figures.sessions,
    "lock_waits": figures.lock_waits,
    "deadlocks": figures.deadlocks,
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
