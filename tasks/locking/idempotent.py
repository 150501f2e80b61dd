"""The form without locks, for comparison: work that is safe to repeat needs none.

It does need `QuerySet.update` in place of `save()`, which would write stale fields over newer changes of others.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from django.db import models

from tasks.locking import report as preconditions
from tasks.locking.report import Outcome, Report, counting_queries

M = TypeVar("M", bound=models.Model)
CHUNK = 200


def update_each(
    queryset: "models.QuerySet[M]", changes_of: Callable[[M], Mapping[str, Any]], *, limit: int | None = None
) -> Report:
    """Write `changes_of(row)`, and only these columns, to each row that still meets the criteria at that moment.

    No lock, no transaction: two processes may both compute a row, and the second UPDATE matches nothing. An exception
    in `changes_of` is that row's failure, and the next row follows. At most `limit` rows are handled.
    """
    preconditions.refuse_unlockable(queryset)
    queryset = queryset.using(queryset.select_for_update().db)
    report = Report(rounds=1)
    with counting_queries(queryset.db, report):
        for row in _in_chunks(queryset.order_by("pk")):
            if limit is not None and report.handled >= limit:
                break
            report.note(row.pk, _update(queryset, row, changes_of, report))
    return report


def _update(
    queryset: "models.QuerySet[M]", row: M, changes_of: Callable[[M], Mapping[str, Any]], report: Report
) -> Outcome:
    try:
        changes = changes_of(row)
    except Exception as error:  # noqa: BLE001  whatever it raises is that row's outcome, kept in the report
        report.errors[row.pk] = error
        return Outcome.FAILED
    return Outcome.DONE if queryset.order_by().filter(pk=row.pk).update(**changes) else Outcome.ALREADY_DONE


def _in_chunks(queryset: "models.QuerySet[M]") -> Iterator[M]:
    """The rows as they are when their chunk is read; a server-side cursor would need a transaction."""
    chunk = list(queryset[:CHUNK])
    while chunk:
        yield from chunk
        chunk = list(queryset.filter(pk__gt=chunk[-1].pk)[:CHUNK]) if len(chunk) == CHUNK else []
