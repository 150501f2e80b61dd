"""The "Needs attention" list, worst first; acknowledged lines are listed apart until they expire or grow."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

from django.db import DatabaseError, OperationalError
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext as _

from dashboard import links
from dashboard.attention import acknowledging
from dashboard.models import Acknowledgement
from tasks import panels
from tasks.panels import Figure, Line, Look, Severity, Step
from tasks.verdicts.words import command

SHOWN = 50
TOO_SLOW = {"55P03", "57014"}  # lock timeout, statement timeout

logger = logging.getLogger(__name__)
T = TypeVar("T")
May = Callable[[str], bool]  # `user.has_perm`: maps a permission's name to True or False


@dataclass(frozen=True)
class Known:
    line: Line
    acknowledgement: Acknowledgement


@dataclass(frozen=True)
class Inbox:
    """The lines that need a person, worst first, and the acknowledged ones."""

    lines: list[Line] = field(default_factory=list)
    known: list[Known] = field(default_factory=list)
    hidden: int = 0  # lines beyond the first SHOWN

    def find(self, name: str) -> Line | None:
        every = [*self.lines, *(known.line for known in self.known)]
        return next((line for line in every if line.name == name), None)


@cache
def load() -> None:
    """Import each app's `attention` module on first use, so that other commands do not pay for it."""
    autodiscover_modules("attention")


def gather(look: Look, may: May) -> Inbox:
    """Collect the lines that a person with these rights may see."""
    load()
    lines, is_whole = said(panels.ATTENTION, look)
    lines = [line for line in lines if may(line.permission)]
    standing = look.once(acknowledging.standing)
    known, unknown = [], [] if is_whole else [untold()]
    for line in sorted(lines, key=urgency):
        acknowledgement = standing.get(line.name)
        if acknowledgement is not None and acknowledging.holds(acknowledgement, line):
            known.append(Known(line, acknowledgement))
        else:
            unknown.append(line)
    return Inbox(unknown[:SHOWN], known[:SHOWN], max(0, len(unknown) - SHOWN))


def figures(look: Look, may: May) -> list[Figure]:
    """Collect the figures that a person with these rights may see; unavailable ones are left out."""
    load()
    found, _is_whole = said(panels.FIGURES, look)
    return [figure for figure in found if may(figure.permission)]


def urgency(line: Line) -> tuple[int, float, str]:
    """Sort key: worst first, then the longest-lasting."""
    return (line.severity, line.since.timestamp() if line.since else float("inf"), line.key)


def said(sources: Iterable[Callable[[Look], Iterable[T]]], look: Look) -> tuple[list[T], bool]:
    """Ask every source; returns the answers, and True if all sources answered."""
    found: list[T] = []
    is_whole = True
    for source in sources:
        try:
            found.extend(source(look))
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
    return getattr(error.__cause__, "sqlstate", None) in TOO_SLOW


def untold() -> Line:
    """The line that says that part of the list is missing."""
    return Line(
        key="untold",
        text=_("A part of this list is not known at this moment."),
        severity=Severity.STOPPED,
        why=_("Somebody holds a table that it is read from, or the log tells of an error; what stands here is true."),
        step=Step(_("See the locks"), links.page("admin:ops_locks"), command("show_locks", "--tree")),
    )
