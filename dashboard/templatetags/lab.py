"""Filters for the numbers on the lab's pages."""

from django import template

from dashboard.numbers import decimal, milliseconds

register = template.Library()
register.filter(milliseconds)
TONES = ("#0b4f71", "#8f1212", "#17592b", "#5d4400", "#222222", "#6b3fa0")  # for charts on paper


@register.filter
def rate(value: float) -> str:
    """Format a number with as many digits as are meaningful.

    >>> rate(0.123), rate(12.34), rate(3456.7)
    ('0.12', '12.3', '3,457')
    """
    return decimal(value, 0 if value >= 100 else 1 if value >= 10 else 2)


@register.filter
def modulo(number: int, divisor: int) -> int:
    """The remainder; it picks the style of the next curve."""
    return number % divisor


@register.filter
def tone(number: int) -> str:
    """The colour of a curve where there is no style sheet."""
    return TONES[number % len(TONES)]
