"""Double-checked locking for an adopter's model: register it once for a button, a command and a lab entry.

    register_pattern("notify_parcels", Parcel.objects.filter(arrived=True, notified=False), notify)

`PatternAdmin` adds the button to the model's page, `PatternCommand` makes the command, and the lab reads this registry.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from django.db import connection, models, transaction
from django.utils.functional import Promise

from tasks.exceptions import RowlockError
from tasks.framework.declaration import handler
from tasks.locking import Report, double_checked
from tasks.locking.double_checked import UNTIL_EMPTY, OnLocked, Progress
from tasks.models import Task
from tasks.support import audit
from tasks.support.audit import Change, Who

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)
COUNT_CAP = 10_000
RUN_PATTERN = "tasks.tasks.run_registered_pattern"

ONE_AT_A_TIME = """
SELECT pg_advisory_xact_lock(hashtext('rowlock:pattern:' || current_schema()), hashtext(%(name)s::text))
"""

Text = str | Promise

_registered: dict[str, "Pattern"] = {}


class UnknownPattern(RowlockError, LookupError):
    """No pattern is registered under this name."""


class RunReport(Protocol):
    """The report of a run: `Report`, or an adopter's own."""

    @property
    def locked(self) -> list[Any]: ...
    @property
    def problems(self) -> list[str]: ...
    @property
    def failure(self) -> str: ...
    def as_dict(self) -> dict[str, Any]: ...


# Called with the keywords on_locked, limit, until_empty, dry_run and progress, as in `run_of`, and the choices.
RunPattern = Callable[..., RunReport]


@dataclass(frozen=True)
class Choice:
    """A decision before a run: `name` is its keyword and option; `values` maps each value to its meaning."""

    name: str
    label: Text
    values: Mapping[str, Text]
    default: str


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One registered pattern."""

    name: str  # lower-case letters, digits and underscores; unique
    queryset: "models.QuerySet[Any]"  # the criteria, as for `double_checked`
    run: RunPattern
    body: Callable[[Any], object] | None  # called with each row under its lock
    label: Text  # of the button
    description: Text  # the effect of a run
    permission: str  # the right that the button needs
    command: str  # the equivalent management command, shown beside the button
    action: str  # the button's `data-action`
    choices: tuple[Choice, ...]  # a person's decisions before a run
    sample: Callable[[int], object] | None  # creates that many rows that meet the criteria, for the lab to measure

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not a pattern's name: write lower-case letters, digits, underscores.")
        if self.name in _registered:
            raise ValueError(f"A pattern is registered as {self.name!r} already: choose another name.")
        double_checked(self.queryset)  # refuse now what cannot be locked

    @property
    def model(self) -> type[models.Model]:
        return self.queryset.model

    @property
    def key(self) -> str:
        """The shared ordering key of its runs, by which an index finds unfinished ones."""
        return f"pattern:{self.name}"


def register_pattern(
    name: str,
    queryset: "models.QuerySet[Any]",
    body: Callable[[Any], object] | None = None,
    *,
    run: RunPattern | None = None,
    of: tuple[str, ...] = ("self",),
    label: Text = "",
    description: Text = "",
    permission: str = "",
    command: str = "",
    action: str = "run-pattern",
    choices: tuple[Choice, ...] = (),
    sample: Callable[[int], object] | None = None,
) -> Pattern:
    """Register the handling of each row that meets the criteria; best in an app's `tasks` module.

    The arguments are those of `Pattern`, whose permission is by default to change the model. Without a body, `run` is
    the whole run, as `RunPattern` says; only then are there choices. `of`: the tables whose rows are locked.

    Raises ValueError for a taken or invalid name, TypeError unless exactly one of `body` and `run` is given.
    """
    if (body is None) == (run is None) or (body is not None and choices):
        raise TypeError("Give register_pattern() either a body or a run; choices go with a run.")
    options = queryset.model._meta
    _registered[name] = Pattern(
        name=name,
        queryset=queryset,
        run=run or run_of(queryset, body, of),
        body=body,
        label=label or name.replace("_", " ").capitalize(),
        description=description,
        permission=permission or f"{options.app_label}.change_{options.model_name}",
        command=command,
        action=action,
        choices=choices,
        sample=sample,
    )
    return _registered[name]


def get(name: str) -> Pattern:
    """The pattern registered under `name`. Raises UnknownPattern with the known ones."""
    if name not in _registered:
        raise UnknownPattern(f"No pattern is registered as {name!r}. Registered: {', '.join(names()) or 'none'}.")
    return _registered[name]


def names() -> list[str]:
    """Every registered name, sorted."""
    return sorted(_registered)


def of_model(model: type[models.Model]) -> list[Pattern]:
    """The patterns of one model, by name."""
    return [_registered[name] for name in names() if _registered[name].model is model]


def run_of(queryset: "models.QuerySet[Any]", body: Callable[[Any], object] | None, of: tuple[str, ...]) -> RunPattern:
    """A run that calls `body` with each row; a dry run locks and releases the rows."""

    def let_go(row: models.Model) -> None:
        transaction.set_rollback(True, using=row._state.db)

    def run(
        *,
        on_locked: OnLocked = "skip",
        limit: int | None = None,
        until_empty: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Report:
        return double_checked(queryset).each(
            let_go if dry_run or body is None else body,
            on_locked=on_locked,
            of=of,
            limit=limit,
            max_rounds=UNTIL_EMPTY if until_empty else 1,
            progress=progress,
        )

    return run


class Requested(NamedTuple):
    """The task of the run; not `is_new` if an earlier run has not ended yet."""

    task_id: int
    is_new: bool


@dataclass(frozen=True)
class RunState:
    """The state of a run: its task, and the rows that still meet the criteria (`is_capped`: more than `left`)."""

    task: Task
    left: int
    is_capped: bool

    @property
    def is_over(self) -> bool:
        return self.task.finished_at is not None


def request(pattern: Pattern, options: Mapping[str, Any], who: Who) -> Requested:
    """Enqueue a run until no row is left, unless one waits or runs: two clicks are one run.

    `options` are the choices and `limit`. Task and intervention commit together.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(ONE_AT_A_TIME, {"name": pattern.name})
        if earlier := unfinished(pattern):
            return Requested(earlier.pk, is_new=False)
        task = handler(RUN_PATTERN).using(ordering_key=pattern.key)
        result = task.enqueue(pattern.name, until_empty=True, **options)
        chosen = " ".join(f"{name}={value}" for name, value in sorted(options.items()) if value is not None)
        change = Change(audit.table(pattern.model._meta.db_table))
        audit.record(connection, who, f"{pattern.action} {chosen}".strip(), [change])
    return Requested(int(result.id), is_new=True)


def unfinished(pattern: Pattern) -> Task | None:
    """The waiting or running run of this pattern, found by its ordering key."""
    return Task.objects.unfinished().filter(ordering_key=pattern.key).order_by("id").first()


def state_of(pattern: Pattern, task_id: int) -> RunState | None:
    """The state of that run; None if the task is gone or no run of this pattern."""
    task = Task.objects.filter(pk=task_id, ordering_key=pattern.key).first()
    if task is None:
        return None
    left = pattern.queryset.order_by()[: COUNT_CAP + 1].count()
    return RunState(task, min(left, COUNT_CAP), left > COUNT_CAP)
