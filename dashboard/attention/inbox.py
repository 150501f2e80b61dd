"""What needs attention, worst first; what somebody has acknowledged stands apart until its time, or until it grows."""

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
TOO_SLOW = {"55P03", "57014"}  # a table that somebody holds, a statement over its time

logger = logging.getLogger(__name__)
T = TypeVar("T")
May = Callable[[str], bool]  # whether somebody has this right: `user.has_perm`


@dataclass(frozen=True)
class Known:
    """A line that somebody has acknowledged, and how."""

    line: Line
    acknowledgement: Acknowledgement


@dataclass(frozen=True)
class Inbox:
    """The lines that want a person, worst first, and those that somebody knows of."""

    lines: list[Line] = field(default_factory=list)
    known: list[Known] = field(default_factory=list)
    hidden: int = 0  # lines beyond the first SHOWN

    def find(self, name: str) -> Line | None:
        """The line of this name, known or not."""
        every = [*self.lines, *(known.line for known in self.known)]
        return next((line for line in every if line.name == name), None)


@cache
def load() -> None:
    """Load the module `attention` of every app: at the first look, for each start of a command would pay for it."""
    autodiscover_modules("attention")


def gather(look: Look, may: May) -> Inbox:
    """The lines of every source that a person with these rights may see."""
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
    """The figures of every source that a person with these rights may see; those that are not known are left out."""
    load()
    found, _is_whole = said(panels.FIGURES, look)
    return [figure for figure in found if may(figure.permission)]


def urgency(line: Line) -> tuple[int, float, str]:
    """Worst first; among equals what has lasted longest."""
    return (line.severity, line.since.timestamp() if line.since else float("inf"), line.key)


def said(sources: Iterable[Callable[[Look], Iterable[T]]], look: Look) -> tuple[list[T], bool]:
    """What the sources say, and whether all of them could be asked."""
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
        except Exception:  # an app's fault in its own lines must not take everybody else's away
            logger.exception("The source %s.%s of the overview failed", source.__module__, source.__qualname__)
            is_whole = False
    return found, is_whole


def is_too_slow(error: OperationalError) -> bool:
    """Whether only this question took too long; else the database itself is in trouble."""
    return getattr(error.__cause__, "sqlstate", None) in TOO_SLOW


def untold() -> Line:
    """In place of what is not known."""
    return Line(
        key="untold",
        text=_("A part of this list is not known at this moment."),
        severity=Severity.STOPPED,
        why=_("Somebody holds a table that it is read from, or the log tells of an error; what stands here is true."),
        step=Step(_("See the locks"), links.page("admin:ops_locks"), command("show_locks", "--tree")),
    )
