"""The batched form of double-checked locking, for comparison: one locked read for many rows.

It needs the fewest statements. But every row of a batch stays locked until the last one is done, and one failure rolls
back the batch. Use it for quick work without effects outside the database.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import models, transaction

from tasks.locking.double_checked import (
    reads_other_tables,
    refuse_isolation,
    refuse_open_transaction,
    refuse_text,
    refuse_unlockable,
)
from tasks.locking.report import Outcome, Report, counting_queries

logger = logging.getLogger(__name__)
M = TypeVar("M", bound=models.Model)


def locked_batches(
    queryset: "models.QuerySet[M]",
    body: Callable[[list[M]], object],
    *,
    size: int = 100,
    of: tuple[str, ...] = ("self",),
    limit: int | None = None,
) -> Report:
    """Call `body` with locked rows that meet the criteria, up to `size` at a time, each time in a transaction.

    Rows that another session holds are skipped and not counted. An exception in `body` rolls back its batch; all its
    rows are reported as failed, and the next batch follows. At most `limit` rows are handled. Raises as
    `double_checked` does.
    """
    refuse_unlockable(queryset)
    refuse_text(of)
    queryset = queryset.using(queryset.select_for_update().db).order_by("pk")
    refuse_open_transaction(queryset.db)
    report, rest = Report(rounds=1), queryset
    room = size if limit is None else min(size, limit)
    with counting_queries(queryset.db, report):
        refuse_isolation(queryset.db)
        while room > 0 and (keys := _one_batch(rest, body, of, room, report)):
            rest = queryset.filter(pk__gt=keys[-1])
            room = size if limit is None else min(size, limit - report.handled)
    return report


def _one_batch(
    queryset: "models.QuerySet[M]", body: Callable[[list[M]], object], of: tuple[str, ...], size: int, report: Report
) -> list[Any]:
    """Lock, check again, call, commit; returns the keys that were locked."""
    rows: list[M] = []
    keys: list[Any] = []
    try:
        with transaction.atomic(using=queryset.db, durable=True):
            locked = queryset.select_for_update(of=of, no_key=True, skip_locked=True)[:size]
            rows = list({row.pk: row for row in locked}.values())  # a join repeats rows
            keys = [row.pk for row in rows]
            if reads_other_tables(queryset.query):
                rows = list(queryset.filter(pk__in=keys))
            if rows:
                body(rows)
    except Exception as error:
        if not rows:
            raise
        logger.warning("a batch of %s %s failed: %s", len(rows), queryset.model._meta.label, error, exc_info=error)
        report.errors |= dict.fromkeys((row.pk for row in rows), error)
    for row in rows:
        report.note(row.pk, Outcome.FAILED if row.pk in report.errors else Outcome.DONE)
    return keys
