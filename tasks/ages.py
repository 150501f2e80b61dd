"""Ages for people: one unit, with its plural form."""

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

UNITS = (
    (86_400, lambda number: ngettext("%(number)d day", "%(number)d days", number)),
    (3_600, lambda number: ngettext("%(number)d hour", "%(number)d hours", number)),
    (60, lambda number: ngettext("%(number)d minute", "%(number)d minutes", number)),
    (1, lambda number: ngettext("%(number)d second", "%(number)d seconds", number)),
)


def spoken(seconds: float) -> str:
    """The age in its largest unit, rounded down; at least two of a unit, so that rounding stays small.

    >>> spoken(0.2), spoken(1), spoken(119), spoken(120), spoken(7200)
    ('less than a second', '1 second', '119 seconds', '2 minutes', '2 hours')
    """
    for size, text in UNITS:
        if seconds >= 2 * size or (size == 1 and seconds >= 1):
            number = int(seconds // size)
            return text(number) % {"number": number}
    return _("less than a second")
