"""Filters for the overview's counts, latencies and chart times."""

from collections.abc import Sequence
from datetime import UTC, datetime

from django import template

from dashboard.attention.queues import COUNT_CAP
from dashboard.overview import charts
from dashboard.overview.charts import Slot

register = template.Library()


@register.filter
def capped(number: int) -> str:
    """A count, with a plus sign if it stopped at its cap."""
    return f"{number}+" if number >= COUNT_CAP else str(number)


@register.filter
def seconds(value: float | None) -> str:
    return charts.written(value)


@register.filter
def utc(at: datetime, clock: str) -> str:
    """A chart's time in UTC, in the format of its span."""
    return at.astimezone(UTC).strftime(clock)


@register.filter
def middle(slots: Sequence[Slot]) -> datetime:
    return slots[len(slots) // 2].at
