"""The task as the operator saw it, carried by the form, so that a later change can be detected."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from django.utils.translation import gettext_lazy as _

from tasks.models import Task
from tasks.operations.filters import InvalidFilter, parse_id

LABELS = {
    "version": _("version"),
    "status": _("status"),
    "attempt": _("attempts spent"),
    "max_attempts": _("attempts allowed"),
    "queue_name": _("queue"),
    "priority": _("priority"),
    "run_after": _("due"),
    "claimed_by": _("worker"),
}


class Difference(NamedTuple):
    """One column that has changed."""

    label: str
    then: Any
    now: Any


@dataclass(frozen=True)
class Seen:
    """The row as the page showed it. Only `id` and `version` decide; the other columns show what changed."""

    id: int
    version: int
    status: str
    attempt: int
    max_attempts: int
    queue_name: str
    priority: int
    run_after: str
    claimed_by: str | None

    @classmethod
    def of(cls, task: Task) -> Self:
        return cls(id=task.pk, run_after=task.run_after.isoformat(), **{name: getattr(task, name) for name in COPIED})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the output of `str`. Raises InvalidFilter for anything else."""
        try:
            seen = cls(**json.loads(text))
            parse_id(str(seen.id))
        except (ValueError, TypeError) as error:
            raise InvalidFilter(
                "The form was changed on its way: go back, load the page anew and try again."
            ) from error
        if not isinstance(seen.version, int):
            raise InvalidFilter("The form names no version of the row: go back, load the page anew and try again.")
        return seen

    def __str__(self) -> str:
        return json.dumps(vars(self))

    def differences(self, task: Task) -> list[Difference]:
        """The columns that differ between then and `task`."""
        now, then = vars(type(self).of(task)), vars(self)
        return [
            Difference(str(label), then[name], now[name]) for name, label in LABELS.items() if then[name] != now[name]
        ]


COPIED = [name for name in LABELS if name != "run_after"]
