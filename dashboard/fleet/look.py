"""One look at the whole fleet, shared by all tabs of a web process, and a search in all installations at once."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple
from urllib.parse import urlencode

from django.db import DatabaseError

from dashboard.fleet import installations
from dashboard.fleet.answers import ATTENTION, FIND, SUMMARY, Garbage, Line, Match, Summary, lines_of, matches_of
from dashboard.fleet.asking import Outcome, Problem, Target, ask_all
from dashboard.fleet.installations import configured, kept
from dashboard.live import snapshots
from dashboard.locks.limits import TOO_SLOW
from tasks.support.database import sqlstate

NO_GRANT = "42501"  # a role that docs/roles.sql did not reach yet
SEE = "dashboard.view_installation"
EVERY_SECONDS = 5.0  # however many tabs are open
URGENCY = {"critical": 1, "warning": 2, "ok": 3}


class Known(NamedTuple):
    """The latest state that an installation told, and when, by `time.monotonic()`."""

    summary: Summary
    lines: tuple[Line, ...]
    at: float


_guard = threading.Lock()
_known: dict[tuple[str, str], Known] = {}  # by name and address


@dataclass(frozen=True)
class State:
    """One installation: why it gave no state now, and the latest state with its age."""

    name: str
    url: str
    problem: Problem | None
    detail: str
    summary: Summary | None
    lines: tuple[Line, ...]
    age_seconds: float  # of the summary; 0 where it is the present one

    @property
    def is_trouble(self) -> bool:
        """True if nobody knows its state, or if work stands still there."""
        return self.problem is not None or self.rank <= 1

    @property
    def rank(self) -> int:
        """Its place in the list: unknown, critical, warnings, healthy."""
        return URGENCY[self.summary.health] if self.summary and not self.problem else 0

    @property
    def urgency(self) -> tuple[int, int, int, str]:
        """Sort key, worst first."""
        told = self.summary
        return self.rank, -(told.critical if told else 0), -(told.warnings if told else 0), self.name


@dataclass(frozen=True)
class Look:
    """The states, worst first; `faults`: parts of the setting that name no installation."""

    states: list[State]
    faults: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[tuple[State, Line]]:
        """Lines of all installations that need attention, worst first, then the longest-lasting."""
        found = [(state, line) for state in self.states for line in state.lines]
        return sorted(found, key=lambda one: (one[1].severity, one[1].since is None, one[1].since or 0, one[0].name))


def shared() -> Look:
    """The latest look, at most EVERY_SECONDS old. Raises OperationalError if the table of installations is locked."""
    snapshot = snapshots.current("fleet", EVERY_SECONDS, grace=snapshots.GRACE)
    rows = snapshot.once(kept)  # before the look, which must not keep a transaction open
    return snapshot.made("look", partial(look, rows))


def is_configured() -> bool:
    """True if there is an installation to show; False as well if their table cannot be read now: every menu asks."""
    targets, faults = configured()
    if targets or faults:
        return True
    try:
        return bool(snapshots.current("fleet", EVERY_SECONDS, grace=snapshots.GRACE).once(kept))
    except DatabaseError as error:
        if sqlstate(error) not in {*TOO_SLOW, NO_GRANT}:
            raise
        return False


def everything(rows: Sequence[Target]) -> tuple[list[Target], list[str]]:
    """The installations of both sources, and the faults of the setting."""
    targets, faults = configured()
    found = [*targets, *rows]
    if len(found) > installations.MOST:
        faults.append(f"{len(found)} installations are named, {installations.MOST} are asked.")
    return found[: installations.MOST], faults


def look(rows: Sequence[Target]) -> Look:
    """Ask every installation now, within a second."""
    targets, faults = everything(rows)
    outcomes = ask_all(targets, (SUMMARY, ATTENTION))
    states = [state_of(target, outcome) for target, outcome in zip(targets, outcomes, strict=True)]
    forget_all_but({(target.name, target.url) for target in targets})
    return Look(sorted(states, key=lambda state: state.urgency), faults)


def state_of(target: Target, outcome: Outcome) -> State:
    """The state that it told now, else the last known one beside the reason."""
    key, now, problem, detail = (target.name, target.url), time.monotonic(), outcome.problem, outcome.detail
    if problem is None:
        try:
            summary, attention = outcome.answers
            with _guard:
                _known[key] = Known(Summary.of(summary), lines_of(attention, target.url), now)
        except Garbage as error:
            problem, detail = Problem.GARBAGE, str(error)
    known = _known.get(key)
    if known is None:
        return State(*key, problem, detail, None, (), 0.0)
    return State(*key, problem, detail, known.summary, known.lines, now - known.at)


def forget_all_but(keys: set[tuple[str, str]]) -> None:
    with _guard:
        for key in _known.keys() - keys:
            del _known[key]


@dataclass(frozen=True)
class Hit:
    """The finds of one installation, or why it was not searched."""

    name: str
    url: str
    problem: Problem | None
    detail: str
    matches: tuple[Match, ...] = ()


def search(text: str, rows: Sequence[Target]) -> list[Hit]:
    """Search for a task's id, a worker or a key everywhere at once; installations that found something come first."""
    targets, _faults = everything(rows)
    outcomes = ask_all(targets, (f"{FIND}?{urlencode({'q': text})}",))
    hits = [hit_of(target, outcome) for target, outcome in zip(targets, outcomes, strict=True)]
    return sorted(hits, key=lambda hit: (not hit.matches, hit.problem is None, hit.name))


def hit_of(target: Target, outcome: Outcome) -> Hit:
    problem, detail = outcome.problem, outcome.detail
    if problem is None:
        try:
            return Hit(target.name, target.url, None, "", matches_of(outcome.answers[0], target.url))
        except Garbage as error:
            problem, detail = Problem.GARBAGE, str(error)
    return Hit(target.name, target.url, problem, detail)
