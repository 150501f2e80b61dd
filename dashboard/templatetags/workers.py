"""Filters for the page of workers."""

from datetime import datetime

from django import template

from dashboard.numbers import decimal
from tasks.diagnosis.stats import Rate
from tasks.support.durations import spoken

register = template.Library()


@register.filter
def between(start: datetime | None, end: datetime | None) -> str:
    """The time between two moments, in words."""
    return spoken((end - start).total_seconds()) if start and end else ""


@register.filter
def per_minute(rate: Rate) -> str:
    """The rate, with one digit after the point below ten."""
    return decimal(rate.per_minute, 0 if rate.per_minute >= 10 or not rate.per_minute else 1)
