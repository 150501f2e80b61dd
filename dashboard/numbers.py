"""Numbers in the format of the reader's language, for parts of pages that Django does not format."""

from django.utils.formats import number_format
from django.utils.translation import gettext as _


def decimal(value: float, digits: int = 0) -> str:
    """Format with `digits` decimals and separated thousands.

    >>> decimal(1234.56), decimal(1234.56, 1)
    ('1,235', '1,234.6')
    """
    if not digits and 0 <= value < 999:
        return str(round(value))  # the same in every language; the rest takes thirty times as long
    return number_format(round(value, digits), digits, force_grouping=True)


def milliseconds(value: float) -> str:
    """Format a number of milliseconds.

    >>> milliseconds(0.04), milliseconds(1234.4)
    ('0.0 ms', '1,234 ms')
    """
    return _("%(number)s ms") % {"number": decimal(value, 0 if value >= 100 else 1)}


def rate(value: float) -> str:
    """Format a number with as many digits as are meaningful.

    >>> rate(0.123), rate(12.34), rate(3456.7)
    ('0.12', '12.3', '3,457')
    """
    return decimal(value, 0 if value >= 100 else 1 if value >= 10 else 2)
