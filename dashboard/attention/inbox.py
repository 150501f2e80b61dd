"""Acknowledge a line of "Needs attention": fold it away for a time, or until it grows."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from django.db import DatabaseError, OperationalError, connection
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard import links
from dashboard.locks.limits import TOO_SLOW
from dashboard.models import Acknowledgement
from tasks import panels
from tasks.diagnosis import lock_holders
from tasks.diagnosis.finding import command
from tasks.diagnosis.lock_holders import Holder
from tasks.exceptions import RowlockError
from tasks.operations.prune import History
from tasks.operations.verb import short_waits
from tasks.panels import AttentionLine, Figure, Severity, Snapshot, Step
from tasks.support import audit, durations
from tasks.support.audit import Change, Who
from tasks.support.database import sqlstate
from tasks.support.redaction import redact

logger = logging.getLogger(__name__)

MOST = 1000
LONGEST = timedelta(days=30)

STANDING = """
SELECT * FROM dashboard_acknowledgement WHERE until IS NULL OR until > statement_timestamp()
ORDER BY at DESC LIMIT %(most)s::int
"""

# A repeat by the same person within a minute is a double click: it changes nothing and is not audited twice.
ACKNOWLEDGE = """
INSERT INTO dashboard_acknowledgement AS known (line, text, actor, reason, until, size)
VALUES (%(line)s::text, %(text)s::text, %(actor)s::text, %(reason)s::text,
    statement_timestamp() + %(lasts)s::interval, %(size)s::bigint)
ON CONFLICT (line) DO UPDATE SET text = excluded.text, actor = excluded.actor, reason = excluded.reason,
    at = statement_timestamp(), until = excluded.until, size = excluded.size
WHERE (known.actor, known.reason, known.size) IS DISTINCT FROM (excluded.actor, excluded.reason, excluded.size)
   OR NOT coalesce(excluded.until - known.until BETWEEN interval '0' AND interval '1 minute',
       known.until IS NULL AND excluded.until IS NULL)
"""

WITHDRAW = "DELETE FROM dashboard_acknowledgement WHERE line = %(line)s::text"


# A line that is acknowledged "until it grows" has no end that SQL could check. It keeps one row per name at most.
PRUNE = """
WITH doomed AS MATERIALIZED (
    SELECT line FROM dashboard_acknowledgement WHERE until < statement_timestamp() - %(age)s::interval
    ORDER BY line LIMIT %(window)s::int FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM dashboard_acknowledgement USING doomed WHERE dashboard_acknowledgement.line = doomed.line
    RETURNING dashboard_acknowledgement.line
)
SELECT 0 AS last_id, count(*) AS deleted, count(*) = %(window)s::int AS is_old FROM deleted
"""

HISTORY = (History("acknowledgements", "dashboard_acknowledgement", PRUNE),)


class Choice(NamedTuple):
    """One way to acknowledge: for a time, or until the line grows (`lasts` is None)."""

    key: str
    label: Promise
    lasts: timedelta | None = None

    @property
    def is_until_it_grows(self) -> bool:
        return self.lasts is None


LASTS = {
    choice.key: choice
    for choice in (
        Choice("grows", gettext_lazy("until it grows")),
        Choice("1h", gettext_lazy("for 1 hour"), timedelta(hours=1)),
        Choice("8h", gettext_lazy("for 8 hours"), timedelta(hours=8)),
        Choice("3d", gettext_lazy("for 3 days"), timedelta(days=3)),
    )
}


class Endless(RowlockError, ValueError):
    """An acknowledgement without a valid end."""


def acknowledgements() -> dict[str, Acknowledgement]:
    """Acknowledgements that have not expired, by the name of their line."""
    return {found.line: found for found in Acknowledgement.objects.raw(STANDING, {"most": MOST})}


def covers(acknowledgement: Acknowledgement, size: int, since: datetime | None) -> bool:
    """True if it covers a line of `size` things; until it grows, only trouble that began before it."""
    if acknowledgement.size is None:
        return True
    return size <= acknowledgement.size and (since is None or since <= acknowledgement.at)


def acknowledge(
    line: AttentionLine, who: Who, *, reason: str, lasts: timedelta | None, size: int | None, dry_run: bool = False
) -> bool:
    """Fold the line away for `lasts`, or until it covers more than `size` things.

    Returns True if this changed anything. Raises Endless if both are None, or if `lasts` exceeds 30 days.
    """
    if (lasts is None and size is None) or (lasts is not None and not timedelta() < lasts <= LONGEST):
        raise Endless("Acknowledge a line until it grows, or for a time of at most 30 days.")
    reason = redact(reason)
    params = {"line": line.name, "text": line.text, "actor": who.actor, "reason": reason, "lasts": lasts, "size": size}
    action = "acknowledge"
    if lasts is not None:
        action += f" for={durations.describe(lasts)}"
    if size is not None:
        action += f" until_more_than={size}"
    return _change(ACKNOWLEDGE, params, who, action, reason, dry_run)


def withdraw(name: str, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
    """Unfold the line again. Returns True if it was acknowledged."""
    return _change(WITHDRAW, {"line": name}, who, "withdraw", reason, dry_run)


def _change(statement: str, params: dict[str, Any], who: Who, action: str, reason: str, dry_run: bool) -> bool:
    with short_waits(rollback=dry_run), connection.cursor() as cursor:
        cursor.execute(statement, params)
        is_changed = bool(cursor.rowcount)
        if is_changed:
            audit.record(connection, who, action, [Change(f"attention:{params['line']}")], reason)
    return is_changed


SHOWN = 50
UNTOLD = "untold"  # the key of the line that nobody can acknowledge
SEE_SESSIONS = "dashboard.view_backend"

T = TypeVar("T")
May = Callable[[str], bool]  # `user.has_perm`: maps a permission's name to True or False


@dataclass(frozen=True)
class Known:
    line: AttentionLine
    acknowledgement: Acknowledgement

    @property
    def command(self) -> str:
        """The command that shows the line again."""
        return command("acknowledge", self.line.name, "--withdraw")


@dataclass(frozen=True)
class Inbox:
    """The lines that need a person, worst first, and the acknowledged ones."""

    lines: list[AttentionLine] = field(default_factory=list)
    known: list[Known] = field(default_factory=list)
    hidden: int = 0  # lines beyond the first SHOWN

    def find(self, name: str) -> AttentionLine | None:
        every = [*self.lines, *(known.line for known in self.known)]
        return next((line for line in every if line.name == name), None)


def gather(snapshot: Snapshot, may: May, *, shown: int = SHOWN) -> Inbox:
    """Collect the lines that a person with these rights may see, at most `shown` of each part."""
    panels.load()
    lines, is_whole = ask_all(panels.ATTENTION, snapshot)
    standing = snapshot.once(acknowledgements)
    known, unknown = [], [] if is_whole else [incomplete(snapshot, may)]
    for line in sorted(filter(lambda line: may(line.permission), lines), key=urgency):
        acknowledgement = standing.get(line.name)
        if acknowledgement is not None and covers(acknowledgement, line.size, line.since):
            known.append(Known(line, acknowledgement))
        else:
            unknown.append(line)
    return Inbox(unknown[:shown], known[:shown], max(0, len(unknown) - shown))


def figures(snapshot: Snapshot, may: May) -> list[Figure]:
    """Collect the figures that a person with these rights may see; unavailable ones are left out."""
    panels.load()
    found, _is_whole = ask_all(panels.FIGURES, snapshot)
    return [figure for figure in found if may(figure.permission)]


def urgency(line: AttentionLine) -> tuple[int, float, str]:
    """Sort key: worst first, then the longest-lasting."""
    return (line.severity, line.since.timestamp() if line.since else float("inf"), line.key)


def ask_all(sources: Iterable[Callable[[Snapshot], Iterable[T]]], snapshot: Snapshot) -> tuple[list[T], bool]:
    """Ask every source; returns the answers, and True if all sources answered."""
    found: list[T] = []
    is_whole = True
    for source in sources:
        try:
            found.extend(source(snapshot))
        except OperationalError as error:
            if not is_too_slow(error):
                raise
            is_whole = False
        except DatabaseError:
            raise
        except Exception:  # One app's bug must not hide the lines of the others.
            logger.exception("The source %s.%s of the overview failed", source.__module__, source.__qualname__)
            is_whole = False
    return found, is_whole


def is_too_slow(error: OperationalError) -> bool:
    """True if only this query timed out; False if the database itself is in trouble."""
    return sqlstate(error) in TOO_SLOW


def incomplete(snapshot: Snapshot, may: May) -> AttentionLine:
    """The line that says that part of the list is missing, and who holds the locks of our tables."""
    why = _("A table that it needs is locked, or the log has an error. The rest of this list is true.")
    holders = snapshot.once(holders_of_tables) if may(SEE_SESSIONS) else []
    ending = next((holder.command for holder in holders if holder.command), "")
    return AttentionLine(
        key=UNTOLD,
        text=_("A part of this list is not known at this moment."),
        severity=Severity.STOPPED,
        why=" ".join([why, *(holder.sentence for holder in holders)]),
        step=Step(_("See the locks"), links.page("admin:ops_locks"), ending or command("show_locks", "--tree")),
    )


def holders_of_tables() -> list[Holder]:
    return lock_holders.find(connection)
