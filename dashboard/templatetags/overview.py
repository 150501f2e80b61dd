"""How the overview writes counts, latencies and the times of its charts."""

from collections.abc import Sequence
from datetime import UTC, datetime

from django import template

from dashboard.attention.queues import COUNT_CAP
from dashboard.overview import charts
from dashboard.overview.throughput import Slot

register = template.Library()


@register.filter
def capped(number: int) -> str:
    """A count, or that there are more than are counted."""
    return f"{number}+" if number >= COUNT_CAP else str(number)


@register.filter
def seconds(value: float | None) -> str:
    """A latency in words."""
    return charts.written(value)


@register.filter
def utc(at: datetime, clock: str) -> str:
    """A time of a chart, in UTC, as its span writes times."""
    return at.astimezone(UTC).strftime(clock)


@register.filter
def middle(slots: Sequence[Slot]) -> datetime:
    """The time in the middle of a chart."""
    return slots[len(slots) // 2].at
