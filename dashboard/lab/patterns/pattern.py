"""One pattern of the lab, and its rows: SQL that makes them, disturbs them, and checks them at the end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import getsource
from textwrap import dedent
from typing import Any

from django.db import models
from django.utils.functional import Promise

from dashboard.lab.worker import Worker
from tasks import patterns

FILL_ORDERS = """
INSERT INTO orders_order (customer_email, placed_at, shipped_at)
SELECT 'c' || n || '@example.test', '2026-01-01', '2026-01-02' FROM generate_series(1, %(items)s) AS n
"""
FILL_TASKS = """
INSERT INTO tasks_task (task_path, queue_name, max_attempts)
SELECT 'dashboard.lab.work', 'lab', 100 FROM generate_series(1, %(items)s)
"""
FILL_ACCOUNTS = """
WITH owner AS (
    INSERT INTO auth_user
        (username, password, is_superuser, is_staff, is_active, first_name, last_name, email, date_joined)
    VALUES ('lab', '!', false, false, true, '', '', '', now()) RETURNING id
)
INSERT INTO orders_account (owner) SELECT id FROM owner WHERE %(items)s > 0
"""

# An outside locker's work on the same rows: it locks one, and changes a column that no pattern means to write.
TOUCH_ORDER = """
UPDATE orders_order SET placed_at = placed_at + interval '1 second'
WHERE id = (SELECT id FROM orders_order ORDER BY random() LIMIT 1 FOR NO KEY UPDATE) RETURNING id
"""
TOUCH_TASK = """
UPDATE tasks_task SET kwargs = jsonb_build_object('touched', coalesce((kwargs ->> 'touched')::int, 0) + 1)
WHERE id = (SELECT id FROM tasks_task ORDER BY random() LIMIT 1 FOR NO KEY UPDATE) RETURNING id
"""
TOUCH_ACCOUNT = """
UPDATE orders_account SET balance = balance + 1 WHERE id = (SELECT min(id) FROM orders_account) RETURNING id
"""

ORDERS_DONE = "SELECT id FROM orders_order WHERE shipped_email_sent"
TASKS_DONE = "SELECT id FROM tasks_task WHERE status = 'COMPLETED'"
OPERATIONS_DONE = "SELECT DISTINCT item AS id FROM lab_ledger WHERE kind = 'effect'"

# The acknowledged writes that are really there.
SECONDS_KEPT = (
    "SELECT coalesce(sum(extract(epoch FROM placed_at - '2026-01-01'::timestamptz)), 0)::int FROM orders_order"
)
TOUCHES_KEPT = "SELECT coalesce(sum((kwargs ->> 'touched')::int), 0)::int FROM tasks_task"
BALANCE_KEPT = "SELECT sum(balance)::int FROM orders_account"
TOUCHES_TOLD = "SELECT count(*)::int FROM lab_ledger WHERE kind = 'touch'"
DEPOSITS_TOLD = "SELECT count(*)::int FROM lab_ledger WHERE kind IN ('effect', 'touch')"


@dataclass(frozen=True)
class Subject:
    """One kind of rows; every field is SQL for the lab's schema.

    Args:
        fill: makes `%(items)s` rows.
        touch: the change of an outside locker to one row.
        done: ids of the rows that are done according to the database.
        told, kept: the number of acknowledged changes, and of those that are there at the end.
    """

    fill: str
    touch: str
    done: str
    told: str
    kept: str


SUBJECTS = {
    "orders": Subject(FILL_ORDERS, TOUCH_ORDER, ORDERS_DONE, TOUCHES_TOLD, SECONDS_KEPT),
    "tasks": Subject(FILL_TASKS, TOUCH_TASK, TASKS_DONE, TOUCHES_TOLD, TOUCHES_KEPT),
    "accounts": Subject(FILL_ACCOUNTS, TOUCH_ACCOUNT, OPERATIONS_DONE, DEPOSITS_TOLD, BALANCE_KEPT),
}


SOURCES = {
    "orders": "L. Plant, double-checked locking over rows in Django",
    "locks": "an article on a distributed lock in a cache, and PostgreSQL's advisory locks",
    "accounts": "H. Benita, pessimistic and optimistic updates of one row",
    "tasks": "an article on a table of tasks shared by many workers",
}


def code_of(part: Callable[..., Any]) -> str:
    """Its source code; empty if it has none, for example a function not written in Python."""
    try:
        return dedent(getsource(part))
    except (OSError, TypeError):
        return ""


def nothing_to_say() -> str:
    """For most patterns: they run on this database and nothing else."""
    return ""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One entry of the lab.

    Args:
        run: works until this worker finds nothing left to do.
        subject: its rows, a key of `dashboard.lab.patterns.pattern.SUBJECTS`, or the label of `own_rows`.
        is_safe: True if no two workers do one item, and no write is lost.
        promise, weakness, use: for people who choose a pattern.
        repeats: effects that one kill may repeat, because a batch is recorded as done all at once.
        guard: a guard that its schema lacks; a second part of the run has it, for comparison.
        guard_off: SQL that removes the guard from the schema.
        runs_on: describes the backend of its locks, and who shares it.
        stands_for: the registered pattern whose code it runs, which gets no entry of its own.
        code: other functions of the project that it runs, to show to readers.
        registered, own_rows: set for an entry that an app has registered.
    """

    name: str
    run: Callable[[Worker], None]
    subject: str
    is_safe: bool
    promise: Promise | str
    weakness: Promise
    use: Promise
    repeats: int = 1
    guard: Promise | str = ""
    guard_off: str = ""
    runs_on: Callable[[], str] = nothing_to_say
    stands_for: str = ""
    code: tuple[Callable[..., Any], ...] = ()
    registered: patterns.Pattern | None = None
    own_rows: Subject | None = None

    @property
    def source(self) -> str:
        if self.registered:
            return f"registered by the app {self.registered.model._meta.app_label}"
        return SOURCES["locks" if self.name.startswith(("cache_lock", "advisory_lock")) else self.subject]

    @property
    def source_code(self) -> str:
        """Source code of the functions that it runs; for a registered pattern its body or its run."""
        if self.registered:
            return code_of(self.registered.body or self.registered.run)
        return "\n\n".join(code_of(part) for part in (self.run, *self.code))

    @property
    def rows(self) -> Subject:
        """SQL that makes its rows and checks them at the end."""
        return self.own_rows or SUBJECTS[self.subject]

    def make_rows(self, number: int) -> None:
        """Call the sample of a registered pattern, in a process that sees only the run's schema."""
        if self.registered and self.registered.sample:
            self.registered.sample(number)

    @property
    def models(self) -> Sequence[type[models.Model]]:
        """Further models whose tables a run needs: for a registered pattern its model's whole app."""
        if not self.registered:
            return ()
        app: Any = self.registered.model._meta.app_config
        return tuple(model for model in app.get_models(include_auto_created=True) if not model._meta.proxy)
