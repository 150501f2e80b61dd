"""Words that verdicts and pages share: a row's holder, and a button's equivalent command."""

import shlex

from django.utils.translation import gettext as _

from tasks.ages import spoken
from tasks.locking.rowlocks import Hold, Locker, RowLock


def told_lock(lock: RowLock) -> str:
    """The row's holder in words."""
    if lock.hold is Hold.UNCERTAIN:
        return _("A session holds the row, and which one is uncertain")
    if lock.hold is Hold.TOUCHED:
        return _("Touched (key share) by %(lockers)s") % {"lockers": ", ".join(map(told_locker, lock.lockers))}
    return _("Held by %(lockers)s") % {"lockers": ", ".join(map(told_locker, lock.lockers))}


def told_locker(locker: Locker) -> str:
    if locker.pid is None:
        return _("a prepared transaction")
    told = {"pid": locker.pid, "name": locker.application_name or _("unnamed")}
    who = _("pid %(pid)d (%(name)s)") % told
    if locker.transaction_seconds is None:
        return who
    return _("%(who)s, in a transaction open for %(age)s") % {"who": who, "age": spoken(locker.transaction_seconds)}


def command(*words: str) -> str:
    """The command line for an operator, quoted for a shell."""
    return shlex.join(("python", "manage.py", *words))
