"""Describe a wait in words, for pages and commands."""

from django.utils.translation import gettext as _

from dashboard.locks.sessions import NAMED, SAME_WORKER, Lock
from tasks.ages import spoken


def told_wait(lock: Lock) -> str:
    """A session's wait in words: `waits 4 minutes for order 1042 (transactionid, ShareLock)`."""
    told = {"age": spoken(lock.wait_seconds or 0), "target": lock.target, "type": lock.locktype, "mode": lock.mode}
    if lock.locktype == SAME_WORKER:
        return _("stands still: %(target)s") % told
    if lock.locktype == NAMED:
        return _("waits %(age)s for the named lock %(target)s (%(mode)s)") % told
    if lock.target:
        return _("waits %(age)s for %(target)s (%(type)s, %(mode)s)") % told
    return _("waits %(age)s (%(type)s, %(mode)s)") % told
