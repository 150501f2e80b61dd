"""Currently locked rows among those that operators watch, and the backends that hold them."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.apps import apps
from django.db import models

from dashboard.locks.sessions import RowRef
from orders.models import Account, Order
from tasks.exceptions import RowlockError
from tasks.locking import rowlocks
from tasks.locking.rowlocks import RowLock
from tasks.models import Task

NEXT_READY = NEWEST = 200
PROCESSING_CAP = 500


class UnknownTable(RowlockError):
    """No model has this table."""


@dataclass(frozen=True)
class HeldRow:
    """One row and the lock on it; `pid` is None if the holder is uncertain."""

    table: str
    id: int
    pid: int | None
    lock: RowLock

    @property
    def url(self) -> str:
        """Link to the row's admin page, or an empty text if there is none."""
        return RowRef(model_of(self.table), self.id).url


def look(table: str | None = None, ids: Iterable[int] = ()) -> list[HeldRow]:
    """Locked rows among PROCESSING tasks, the next READY ones, the newest orders and accounts, and `ids` of `table`.

    It checks some hundreds of rows of each, never a whole table. Raises UnknownTable.
    """
    watched: dict[type[models.Model], list[int]] = {
        Task: _watched_tasks(),
        Order: _newest(Order),
        Account: _newest(Account),
    }
    if table is not None:
        watched.setdefault(model_of(table), []).extend(ids)
    return [row for model, keys in watched.items() for row in held(model, keys)]


def held(model: type[models.Model], ids: Iterable[int]) -> list[HeldRow]:
    """The locked rows among `ids` of `model`, one entry per holder."""
    found = rowlocks.lockers(model, ids)
    return [
        HeldRow(model._meta.db_table, key, pid, lock)
        for key, lock in sorted(found.items())
        for pid in ([locker.pid for locker in lock.lockers] or [None])
    ]


def model_of(table: str) -> type[models.Model]:
    """The model of this table: SQL names come from models only, never from user input."""
    known = {model._meta.db_table: model for model in apps.get_models()}
    try:
        return known[table]
    except KeyError:
        raise UnknownTable(f"No model has the table {table!r}. Known are: {', '.join(sorted(known))}.") from None


def _watched_tasks() -> list[int]:
    # Each query follows the order of an index, so that it reads the index and not the table.
    ready = Task.objects.ready()
    unkeyed = ready.filter(ordering_key__isnull=True).order_by("queue_name", "-priority", "run_after", "id")
    keyed = ready.filter(ordering_key__isnull=False).order_by("ordering_key", "id")
    processing = Task.objects.processing()[:PROCESSING_CAP]
    watched = (processing, unkeyed[:NEXT_READY], keyed[:NEXT_READY])
    return [key for tasks in watched for key in tasks.values_list("pk", flat=True)]


def _newest(model: type[models.Model]) -> list[int]:
    return list(model._default_manager.order_by("-pk").values_list("pk", flat=True)[:NEWEST])
