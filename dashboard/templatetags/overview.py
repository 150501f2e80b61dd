"""Filters for the overview's counts."""

from django import template

from dashboard.attention.queues import COUNT_CAP

register = template.Library()


@register.filter
def capped(number: int) -> str:
    """A count, with a plus sign if it stopped at its cap."""
    return f"{number}+" if number >= COUNT_CAP else str(number)
