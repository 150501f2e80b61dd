"""Who changed what by hand: one append-only row of `tasks_intervention` for each target of each action."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Who:
    """The person and the way by which an action came: `Who("anna", "page")` or `Who("root@db1", "command")`."""

    actor: str
    source: Literal["page", "command"]
