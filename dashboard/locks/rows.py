"""Sessions and waits as rows of a page: frozen, in texts that a template prints as they are."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.template.defaultfilters import truncatechars
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard import links
from dashboard.locks.attribution import Behind, LockPage
from dashboard.locks.identity import Identity, identify
from dashboard.locks.signals import shell
from dashboard.locks.tree import Session, TreeLine, wait_in_short, wait_in_words
from dashboard.models import LockWait
from tasks.support import tracing
from tasks.support.addresses import address
from tasks.support.durations import spoken

QUERY_SHOWN = 400  # the first line shows, the rest unfolds
BUSY_QUERY_SHOWN = 120
BLOCKERS_SHOWN = 3
NOTHING = "\u2013"  # an en dash
OWNERS = {  # the page about the owner of a session
    "worker": "admin:ops_workers",
    "supervisor": "admin:ops_workers",
    "cmd": "admin:ops_schedule",
    "lock": "admin:ops_schedule",
    "lab": "admin:ops_lab",
}


@dataclass(frozen=True)
class Anchor:
    """A text and the address of its page; an empty `url` if it has none."""

    text: str
    url: str = ""


@dataclass(frozen=True)
class Work:
    """The task, the lab run and the held rows behind a session; `more`: how many rows are not in `rows`."""

    task: Anchor | None
    task_path: str
    task_age: str
    trace_url: str
    lab_run: Anchor | None
    rows: tuple[Anchor, ...]
    more: str


@dataclass(frozen=True)
class SignalForm:
    """The hidden fields of the buttons that end a session; `command` ends it from a shell."""

    pid: str
    started: str
    may_cancel: bool
    command: str


@dataclass(frozen=True)
class TreeRow:
    """One session on one line, in the lock tree or beside it.

    `login`: `user@host` of a program that is not Rowlock's; `waits`: the wait in a few words; `details`: shown when the
    statement is opened; `note` names the reason why a root blocker has no buttons: "prepared", "named lock", "own" or
    "no client".
    """

    key: str
    level: int
    indent: int
    pid: str
    owners: tuple[Anchor, ...]
    work: Work | None
    login: str
    blockers: str
    victims: str
    state: str
    state_age: str
    waits: str
    query: str
    details: tuple[str, ...]
    form: SignalForm | None
    note: str
    opens: bool = False
    closes: range = range(0)
    summary: str = ""

    @property
    def is_root(self) -> bool:
        """True if it blocks others and waits for nobody."""
        return self.level == 1 and bool(self.victims)


@dataclass(frozen=True)
class Idle:
    """Idle sessions, folded into one line: `text` counts them, `more` those that are not in `rows`."""

    key: str
    text: str
    rows: tuple[TreeRow, ...]
    more: int


@dataclass(frozen=True)
class BusyRow:
    """One line of the lab's table of workers that go on."""

    pid: str
    worker: str
    holds: str
    state: str
    query: str


@dataclass(frozen=True)
class PastWait:
    """One line of the lock history."""

    id: str
    began: datetime
    lasted: str
    blocked_pid: str
    blocked: Anchor
    blocked_task: Anchor | None
    blocked_query: str
    blocker_pid: str
    blocker: Anchor
    blocker_task: Anchor | None
    blocker_state: str
    blocker_query: str
    target: str
    lock: str


def tree_rows(lines: Iterable[TreeLine], behind: Mapping[int, Behind], *, may_signal: bool) -> list[TreeRow]:
    """The lines of a tree; the buttons are left out where nobody may end sessions."""
    return [tree_row(line, behind.get(line.node.session.pid), may_signal=may_signal) for line in lines]


def tree_row(line: TreeLine, work: Behind | None, *, may_signal: bool) -> TreeRow:
    node, session, lock = line.node, line.node.session, line.node.waits_for
    form = form_of(session) if may_signal else None
    return TreeRow(
        **common(session, work),
        level=line.level,
        indent=line.indent,
        blockers="" if line.level == 1 else blockers_of(line),
        victims=_("blocks %(number)s") % {"number": node.victims} if node.blocked else "",
        waits=wait_in_short(lock) if lock else "",
        details=details_of(session, wait_in_words(lock) if lock else ""),
        form=form,
        note=note_of(session, may_signal=may_signal) if line.level == 1 and not form else "",
        opens=line.opens,
        closes=line.closes,
        summary=summary_of(len(node.blocked), session.shortly) if line.opens else "",
    )


def common(session: Session, work: Behind | None) -> dict[str, Any]:
    """The part of a line that is the same inside the tree and beside it."""
    is_other = session.identity.kind == "other" and session.role
    return {
        "key": session.key,
        "pid": "" if session.is_outsider else str(session.pid),
        "owners": owners(session.identity),
        "work": work_of(work),
        "login": f"{session.role}@{session.client or 'local'}" if is_other else "",
        "state": session.state or "",
        "state_age": age(session.state_seconds) if session.state else "",
        "query": beginning(session.query),
    }


def session_row(session: Session, page: LockPage) -> TreeRow:
    """A session beside the tree; it can be ended from there if it has a transaction open."""
    return TreeRow(
        **common(session, page.behind.get(session.pid)),
        level=1,
        indent=1,
        blockers="",
        victims="",
        waits=waits_of(session, page.seen.by_pid),
        details=details_of(session),
        form=form_of(session) if session.xact_start else None,
        note="",
    )


def busy_sessions(page: LockPage) -> list[Session]:
    """The sessions beside the tree that do something, or have a transaction open."""
    return [session for session in bystanders(page) if not is_idle(session)]


def idle_sessions(page: LockPage, most: int) -> list[Idle]:
    """Rowlock's idle sessions, and those of other programs; at most `most` rows of each."""
    ours: list[Session] = []
    others: list[Session] = []
    for session in filter(is_idle, bystanders(page)):
        (others if session.identity.kind == "other" else ours).append(session)
    texts = {
        "rowlock": ngettext("%(number)s idle session of Rowlock", "%(number)s idle sessions of Rowlock", len(ours)),
        "others": ngettext(
            "%(number)s idle session of other programs", "%(number)s idle sessions of other programs", len(others)
        ),
    }
    return [
        Idle(
            key,
            texts[key] % {"number": len(found)},
            tuple(session_row(session, page) for session in found[:most]),
            max(0, len(found) - most),
        )
        for key, found in (("rowlock", ours), ("others", others))
        if found
    ]


def bystanders(page: LockPage) -> list[Session]:
    return [session for session in page.seen.sessions if session.pid in page.bystanders]


def is_idle(session: Session) -> bool:
    return session.state == "idle" and session.xact_start is None


def busy_row(session: Session, behind: Behind | None) -> BusyRow:
    work = work_of(behind)
    rows = ", ".join(row.text for row in work.rows) if work else ""
    return BusyRow(
        pid=str(session.pid),
        worker=session.label,
        holds=f"{rows or NOTHING} {work.more if work else ''}".rstrip(),
        state=session.state or NOTHING,
        query=truncatechars(session.query, BUSY_QUERY_SHOWN),
    )


def past_wait(wait: LockWait) -> PastWait:
    return PastWait(
        id=str(wait.pk),
        began=wait.waiting_since,
        lasted=spoken(wait.seconds),
        blocked_pid=str(wait.blocked_pid),
        blocked=owner(identify(wait.blocked_who)),
        blocked_task=task_anchor(wait.blocked_task) if wait.blocked_task else None,
        blocked_query=beginning(wait.blocked_query),
        blocker_pid=str(wait.blocker_pid) if wait.blocker_pid > 0 else "",
        blocker=owner(identify(wait.blocker_who)),
        blocker_task=task_anchor(wait.blocker_task) if wait.blocker_task else None,
        blocker_state=wait.blocker_state,
        blocker_query=beginning(wait.blocker_query),
        target=wait.target,
        lock=f"{wait.locktype} {wait.mode}",
    )


def owner(identity: Identity) -> Anchor:
    """The session's owner, with the page about it: its worker, the lab or the commands."""
    url = links.page(OWNERS[identity.kind]) if identity.kind in OWNERS else ""
    return Anchor(str(identity), f"{url}#worker-{identity.name}" if identity.kind == "worker" else url)


def owners(identity: Identity) -> tuple[Anchor, ...]:
    """The session's owner; for a named lock also the worker, command or run that took it, if that has a page."""
    party = owner(identity.party) if identity.party else None
    return (owner(identity), party) if party and party.url else (owner(identity),)


def task_anchor(task_id: int) -> Anchor:
    return Anchor(_("task %(id)s") % {"id": task_id}, address("admin:tasks_task_change", task_id))


def work_of(behind: Behind | None) -> Work | None:
    if behind is None:
        return None
    task, lab_run = behind.task, None
    if behind.lab_run and (url := links.page("admin:ops_lab_run", behind.lab_run)):
        lab_run = Anchor(_("run %(id)s") % {"id": behind.lab_run}, url)
    return Work(
        task=task_anchor(task.id) if task else None,
        task_path=task.task_path if task else "",
        task_age=age(task.seconds) if task else "",
        trace_url=tracing.trace_url(behind.traceparent),
        lab_run=lab_run,
        rows=tuple(Anchor(str(row), row.url) for row in behind.rows),
        more=_("and %(number)s more") % {"number": behind.more} if behind.more else "",
    )


def form_of(session: Session) -> SignalForm | None:
    """The buttons that end this session; None if it may not be signalled."""
    if not session.may_be_signalled:
        return None
    start = session.backend_start
    return SignalForm(
        str(session.pid),
        start.isoformat() if start else "",
        may_cancel=session.state == "active",
        command=shell(session.pid, start, "terminate") if start else "",
    )


def note_of(session: Session, *, may_signal: bool) -> str:
    """The reason why a root blocker has no buttons; empty if the page already says so elsewhere."""
    if session.is_outsider:
        return "prepared" if session.pid == 0 else "named lock"
    if session.is_ours:
        return "own"
    return "no client" if may_signal and not session.is_hidden else ""


def blockers_of(line: TreeLine) -> str:
    pids = line.node.session.blocked_by
    # In a long queue each session waits for all before it.
    first = ", ".join(map(str, pids[:BLOCKERS_SHOWN])) + beyond(pids)
    return _("blocked by %(blockers)s, level %(level)s") % {"blockers": first, "level": line.level}


def beyond(pids: Sequence[int]) -> str:
    """The text "and N more", or an empty one if all are shown."""
    hidden = len(pids) - BLOCKERS_SHOWN
    return " " + _("and %(number)s more") % {"number": hidden} if hidden > 0 else ""


def summary_of(number: int, name: str) -> str:
    text = ngettext("%(number)s session waits for %(who)s", "%(number)s sessions wait for %(who)s", number)
    return text % {"number": number, "who": name}


def details_of(session: Session, wait: str = "") -> tuple[str, ...]:
    """The sentences under a statement: the wait in full, and how long the transaction has been open."""
    transaction = ""
    if session.transaction_seconds is not None:
        text = _("held for %(age)s") if session.is_outsider else _("transaction open for %(age)s")
        transaction = text % {"age": spoken(session.transaction_seconds)}
    return tuple(filter(None, (wait, transaction)))


def waits_of(session: Session, by_pid: Mapping[int, Session]) -> str:
    """Its first blockers, by pid or name; without blockers the wait event of its statement."""
    if not session.blocked_by:
        return (session.wait_event or "") if session.state == "active" else ""
    first = (
        str(pid) if pid > 0 or pid not in by_pid else str(by_pid[pid].identity)
        for pid in session.blocked_by[:BLOCKERS_SHOWN]
    )
    return _("waits for %(target)s") % {"target": ", ".join(first) + beyond(session.blocked_by)}


def age(seconds: float | None) -> str:
    return "" if seconds is None else spoken(seconds)


def beginning(query: str) -> str:
    """The beginning of a statement. Django's filter alone would walk every character of a short text too."""
    return query if len(query) <= QUERY_SHOWN else truncatechars(query, QUERY_SHOWN)
