"""Numbers as the reader's language writes them; all other parts of a page do so by themselves."""

from django.template.defaultfilters import floatformat
from django.utils.translation import gettext as _


def decimal(value: float, digits: int = 0) -> str:
    """With so many digits after the decimal sign, and with thousands apart.

    >>> decimal(1234.56), decimal(1234.56, 1)
    ('1,235', '1,234.6')
    """
    return str(floatformat(value, f"{digits}g"))


def milliseconds(value: float) -> str:
    """A time that is given in them.

    >>> milliseconds(0.04), milliseconds(1234.4)
    ('0.0 ms', '1,234 ms')
    """
    return _("%(number)s ms") % {"number": decimal(value, 0 if value >= 100 else 1)}
