"""How the pages of the lab write numbers."""

from django import template

from dashboard.numbers import decimal, milliseconds

register = template.Library()
register.filter(milliseconds)
TONES = ("#0b4f71", "#8f1212", "#17592b", "#5d4400", "#222222", "#6b3fa0")  # of a picture on paper


@register.filter
def rate(value: float) -> str:
    """A number with as many digits as mean something.

    >>> rate(0.123), rate(12.34), rate(3456.7)
    ('0.12', '12.3', '3,457')
    """
    return decimal(value, 0 if value >= 100 else 1 if value >= 10 else 2)


@register.filter
def modulo(number: int, divisor: int) -> int:
    """The remainder: which of a few styles the next curve has."""
    return number % divisor


@register.filter
def tone(number: int) -> str:
    """The colour of a curve where there is no style sheet."""
    return TONES[number % len(TONES)]
