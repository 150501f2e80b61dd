"""Sessions that block others, and transactions that have been open too long."""

from collections.abc import Iterator
from datetime import timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard import links
from dashboard.locks import activity
from dashboard.locks.tree import Node, Session
from dashboard.numbers import decimal
from tasks import panels
from tasks.diagnosis.finding import command
from tasks.panels import Act, AttentionLine, Figure, Severity, Snapshot, Step
from tasks.support.durations import spoken

BLOCKED_SECONDS = 5  # shorter waits are normal in a busy database
IDLE_SECONDS = 60  # a transaction that nobody works in
OPEN_SECONDS = 15 * 60  # any older transaction keeps VACUUM from cleaning up every table (fault F11)
SEE, SIGNAL = "dashboard.view_backend", "dashboard.signal_backend"


@panels.attention
def blocked(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """The roots of the lock tree, with the number of sessions that each one blocks."""
    for root in snapshot.once(activity.read).roots:
        waited, age = longest_wait(root), root.session.transaction_seconds
        if waited < BLOCKED_SECONDS:
            continue
        text = ngettext(
            "%(number)d session blocked for %(age)s by %(who)s.",
            "%(number)d sessions blocked for %(age)s by %(who)s.",
            root.victims,
        )
        since_when = _("Its transaction has been open for %(age)s.")
        yield AttentionLine(
            key=f"blocked:{name(root.session)}",
            text=text % {"number": root.victims, "age": spoken(waited), "who": who(root.session)},
            severity=Severity.STOPPED,
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
    seen = snapshot.once(activity.read)
    blockers = {root.session.pid for root in seen.roots if longest_wait(root) >= BLOCKED_SECONDS}
    for session in seen.sessions:
        if session.pid in blockers or session.blocked_by or not is_open_too_long(session):
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


def is_open_too_long(session: Session) -> bool:
    age = session.transaction_seconds or 0
    return age > (IDLE_SECONDS if session.is_idle_in_transaction else OPEN_SECONDS)


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
        is_open_too_long(oldest),
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
