"""Who claims, and what a claim gives: a task as its worker holds it."""

import json
import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tasks import plain_line
from tasks.shortcut import Place, Shortcut, last_place, remember

KEYS_PER_STRIDE = 300
# A look at a hundred keys of which none is due takes as long as the rest of a claim of one task.
KEYS_REST_SECONDS = 0.02


@dataclass(slots=True)
class Claim:
    """One claimed task, as its worker holds it. What few look at is as PostgreSQL writes it: JSON, and the times."""

    id: int
    task_path: str
    queue_name: str
    priority: int
    args: str
    kwargs: str
    version: int
    attempt: int
    max_attempts: int
    ordering_key: str | None
    created_at: str
    run_after: str
    started_at: str

    def enqueued_at(self) -> datetime:
        """`created_at` in UTC."""
        return datetime.fromisoformat(self.created_at).astimezone(UTC)

    def claimed_at(self) -> datetime:
        """`started_at` as the claim has written it."""
        return datetime.fromisoformat(self.started_at)

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """The decoded positional and keyword arguments."""
        args = [] if self.args == "[]" else json.loads(self.args)
        return args, {} if self.kwargs == "{}" else json.loads(self.kwargs)


@dataclass
class Claimer:
    """A claiming worker: its queues (None: every queue), and where its walk over the ordering keys stands.

    `durable`: the paths of tasks that are claimed alone, as those on their last attempt are (`tasks.claims.LOCKED`).
    """

    worker_id: str
    queues: list[str] | None = None
    durable: list[str] = field(default_factory=list)
    cursor: str = ""
    keys: int = KEYS_PER_STRIDE
    keys_rest_until: float = 0.0  # by `time.monotonic()`
    line_is_mixed_until: float = 0.0  # the same; as far as is known
    careful_until: float = 0.0  # the same; a row was refused
    lost_races: int = 0
    is_from_start: bool = False  # nothing was found since the walk began at the first key
    is_slow: bool = False  # the last claim from the beginning of the line was
    shortcut: Shortcut | None = None
    places: tuple[Place, ...] = ()  # where the last claims ended

    @property
    def has_been_round(self) -> bool:
        """Whether the last claim was empty because nothing is due, and not because it walked past some keys only."""
        return self.is_from_start and not self.cursor

    @property
    def is_careful(self) -> bool:
        """True for some seconds after a row was refused: rows are then claimed one by one."""
        return time.monotonic() < self.careful_until

    @property
    def expects_plain_line(self) -> bool:
        """Whether it is worth asking first if the line is plain (`tasks.plain_line`)."""
        return time.monotonic() >= self.line_is_mixed_until

    def note_line(self, *, is_plain: bool, is_found: bool) -> None:
        """A claim asked whether the line is plain, and took something or not. In a plain one there are no keys."""
        if is_plain:
            self.cursor, self.is_from_start = "", not is_found
        else:
            self.line_is_mixed_until = time.monotonic() + plain_line.REST_SECONDS

    def note_taken(self, taken: list[Claim]) -> Place | None:
        """Remember where a claim ended."""
        place = last_place(taken)
        if place:
            self.places = remember(self.places, place)
        return place

    def holds_alone(self, claim: Claim) -> bool:
        """True if this task must be the only one claimed: it is on its last attempt, or durable."""
        return claim.attempt >= claim.max_attempts or claim.task_path in self.durable

    def served(self) -> tuple[Place, ...]:
        """The remembered places in the order of the line: by priority, then queues as named, or by chance."""
        turns = {name: number for number, name in enumerate(self.queues or ())}
        return tuple(sorted(self.places, key=lambda at: (-at.priority, turns.get(at.queue_name, random.random()))))  # noqa: S311

    def forget_places(self) -> None:
        """Tasks that were given back stand before them: walk the line from its beginning."""
        self.places, self.shortcut = (), None

    def params(self, limit: int) -> dict[str, Any]:
        """What a claim takes that walks the line from its beginning."""
        return {
            "worker_id": self.worker_id,
            "queues": self.queues,
            "cursor": self.cursor,
            "keys": 0 if time.monotonic() < self.keys_rest_until else self.keys,
            "limit": limit,
            "durable": self.durable,
            "may_be_alone": True,
        }

    def following_params(self, shortcut: Shortcut, limit: int, *, is_ahead: bool) -> dict[str, Any]:
        """What a claim takes that goes on behind the last tasks. `is_ahead`: while other tasks are in hand."""
        common = {"worker_id": self.worker_id, "limit": limit, "durable": self.durable, "may_be_alone": not is_ahead}
        return {**common, **shortcut.params()}

    def note_walk(self, keys: int, next_cursor: str | None) -> None:
        """Such a claim looked at so many keys at most. `next_cursor`: where the next goes on; None: no key was due."""
        if keys != self.keys:
            return  # they rest
        began_at_first = not self.cursor
        self.is_from_start = self.is_from_start or began_at_first
        self.cursor = next_cursor or ""
        if began_at_first and next_cursor is None:
            self.keys_rest_until = time.monotonic() + KEYS_REST_SECONDS
