"""Metrics of queues, workers and finished attempts."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from dashboard.metrics.labels import kept, label
from tasks import latency, rollup, stats
from tasks.panels import Look
from tasks.presence import Life
from tasks.rollup import Total
from tasks.stats import Numbers, QueueNumbers

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
    ranked = sorted(look.once(rollup.totals), key=lambda total: (-total.completed - total.failed, total.queue_name))
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
    bounds = [*map(str, latency.BOUNDS_SECONDS), "+Inf"]
    return [(bound, sum(counts[: number + 1])) for number, bound in enumerate(bounds)]
