"""Sessions that block others, transactions that have been open too long, and connections that run out."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard import links
from dashboard.attention import thresholds
from dashboard.locks import activity
from dashboard.locks.tree import Node, Session
from dashboard.numbers import decimal
from tasks import panels
from tasks.diagnosis.finding import command
from tasks.panels import Act, AttentionLine, Figure, Severity, Snapshot, Step
from tasks.support.database import fetch
from tasks.support.durations import spoken

SEE, SIGNAL = "dashboard.view_backend", "dashboard.signal_backend"

# Sessions of all databases count. The backend type is hidden from roles without pg_read_all_stats. PostgreSQL 16 keeps
# `reserved_connections` beside those of superusers.
CONNECTIONS = """
WITH used AS (
    SELECT coalesce(nullif(application_name, ''), usename, '?') AS name, count(*) AS number
    FROM pg_stat_activity WHERE coalesce(backend_type, 'client backend') = 'client backend' GROUP BY 1
)
SELECT (SELECT coalesce(sum(number), 0)::int FROM used) AS used, most.name AS most_name, most.number AS most_number,
    current_setting('max_connections')::int AS max_connections,
    current_setting('superuser_reserved_connections')::int
        + coalesce(current_setting('reserved_connections', true)::int, 0) AS reserved
FROM (SELECT name, number FROM used ORDER BY number DESC, name LIMIT 1) AS most
"""


@panels.attention
def blocked(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """The roots of the lock tree, with the number of sessions that each one blocks; critical if many or for long."""
    limits = thresholds.values(snapshot)
    for root in snapshot.once(activity.read).roots:
        waited, age = longest_wait(root), root.session.transaction_seconds
        if waited < limits["blocked_seconds"]:
            continue
        is_critical = root.victims >= limits["blocked_sessions"] or waited > limits["blocked_long_seconds"]
        text = ngettext(
            "%(number)d session blocked for %(age)s by %(who)s.",
            "%(number)d sessions blocked for %(age)s by %(who)s.",
            root.victims,
        )
        since_when = _("Its transaction has been open for %(age)s.")
        yield AttentionLine(
            key=f"blocked:{name(root.session)}",
            text=text % {"number": root.victims, "age": spoken(waited), "who": who(root.session)},
            severity=Severity.STOPPED if is_critical else Severity.LOSING,
            why="" if age is None else since_when % {"age": spoken(age)},
            since=snapshot.now - timedelta(seconds=waited),
            size=root.victims,
            step=Step(_("See the chain"), chain_of(root.session), command("show_locks", "--tree")),
            permission=SEE,
            act=terminate(root.session),
        )


def longest_wait(root: Node) -> float:
    """The longest wait behind this root, in seconds."""
    longest, nodes = 0.0, list(root.blocked)
    while nodes:
        node = nodes.pop()
        longest = max(longest, (node.waits_for and node.waits_for.wait_seconds) or 0.0)
        nodes.extend(node.blocked)
    return longest


@panels.attention
def open_transactions(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """Transactions open too long, except those that already have a line of their own as blockers."""
    blockers, too_long = pids_of_blockers(snapshot), open_too_long(snapshot)
    for session in too_long:
        if session.pid in blockers or session.blocked_by:
            continue
        age = session.transaction_seconds or 0
        text = _("A transaction has been open for %(age)s: %(who)s.")
        yield AttentionLine(
            key=f"open:{name(session)}",
            text=text % {"age": spoken(age), "who": who(session)},
            severity=Severity.SLOW,
            why=_("It keeps its locks, and VACUUM cannot remove dead rows of any table."),
            since=snapshot.now - timedelta(seconds=age),
            step=Step(_("See the session"), chain_of(session), command("show_locks")),
            permission=SEE,
            act=terminate(session),
        )


def terminate(session: Session) -> Act | None:
    """The button that ends this session; None if it may not be signalled."""
    started, url = session.backend_start, links.page("admin:ops_signal")
    if not session.may_be_signalled or started is None or not url:
        return None
    fields = (("pid", str(session.pid)), ("started", started.isoformat()), ("action", "terminate"))
    return Act(_("Terminate…"), url, fields, "terminate-backend", SIGNAL, is_destructive=True)


def pids_of_blockers(snapshot: Snapshot) -> set[int]:
    """The roots that have a line; PREPARED stands for prepared transactions."""
    shown_after = thresholds.values(snapshot)["blocked_seconds"]
    return {root.session.pid for root in snapshot.once(activity.read).roots if longest_wait(root) >= shown_after}


def open_too_long(snapshot: Snapshot) -> list[Session]:
    """The sessions whose transactions have been open too long."""
    limits = thresholds.values(snapshot)
    return [session for session in snapshot.once(activity.read).sessions if is_open_too_long(session, limits)]


def is_open_too_long(session: Session, limits: Mapping[str, int]) -> bool:
    age = session.transaction_seconds or 0
    return age > limits["idle_seconds" if session.is_idle_in_transaction else "open_seconds"]


def connections() -> list[dict[str, Any]]:
    return fetch(connection, CONNECTIONS)


@panels.attention
def running_out(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """Connections near the limit; those reserved for superusers do not count as free."""
    percent = thresholds.values(snapshot)["connections_percent"]
    for found in snapshot.once(connections):
        usable = found["max_connections"] - found["reserved"]
        if 100 * found["used"] < percent * usable:
            continue
        why = _("max_connections is %(max)d, of which %(reserved)d are reserved. Most are of %(name)s: %(number)d.")
        values = {"max": found["max_connections"], "reserved": found["reserved"], "name": found["most_name"]}
        yield AttentionLine(
            key="connections",
            text=_("%(used)d of %(usable)d connections are in use.") % {"used": found["used"], "usable": usable},
            severity=Severity.SLOW if found["used"] < usable else Severity.STOPPED,
            why=why % {**values, "number": found["most_number"]},
            size=found["used"],
            step=Step(_("See the sessions"), links.page("admin:ops_locks"), command("show_locks")),
            permission=SEE,
        )


@panels.figures
def figures(snapshot: Snapshot) -> Iterator[Figure]:
    """The number of sessions that wait for a lock, and the oldest transaction."""
    seen = snapshot.once(activity.read)
    url = links.page("admin:ops_locks")
    yield Figure(_("Blocked sessions"), decimal(len(seen.blocked)), url, permission=SEE)
    oldest = max(seen.sessions, key=lambda session: session.transaction_seconds or 0, default=None)
    if oldest is None or oldest.transaction_seconds is None:
        yield Figure(_("Oldest transaction"), _("none"), url, permission=SEE)
        return
    yield Figure(
        _("Oldest transaction"),
        spoken(oldest.transaction_seconds),
        chain_of(oldest),
        who(oldest),
        is_open_too_long(oldest, thresholds.values(snapshot)),
        SEE,
    )


def name(session: Session) -> str:
    """A name that differs from that of a later session with the same pid."""
    started = session.backend_start.isoformat() if session.backend_start else session.label
    return f"{session.key}:{started}"


def who(session: Session) -> str:
    """The session in few words: `pid 812 (psql, idle in transaction)`; other lock holders by name."""
    if session.is_outsider:
        return session.shortly
    state = session.state or _("state hidden")
    return _("pid %(pid)d (%(name)s, %(state)s)") % {"pid": session.pid, "name": session.identity, "state": state}


def chain_of(session: Session) -> str:
    """Link to the session on the page of locks."""
    return f"{links.page('admin:ops_locks')}#node-{session.key}"
