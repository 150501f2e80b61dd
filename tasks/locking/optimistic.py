"""Writes without locks: compare-and-swap on a row's `version` (patterns, system C), and work that is safe to repeat."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from django.db import models

from tasks.exceptions import StaleVersion
from tasks.locking.double_checked import refuse_unlockable
from tasks.locking.report import Outcome, Report, counting_queries

M = TypeVar("M", bound=models.Model)
CHUNK = 200


class VersionedModel(models.Model):
    """A model whose rows carry a version.

    Add `VersionTrigger("app.model")` to its migration, so that writes from outside the ORM raise the version too.
    """

    version = models.IntegerField(default=1, db_default=1, editable=False)

    class Meta:
        abstract = True


def update_if_unchanged(instance: models.Model, **changes: Any) -> None:
    """Write `changes`, and only these, to the row of `instance` if its version is still the one that was read.

    One UPDATE, without a lock. The instance then carries the changes and the new version. `changes` are plain values,
    because the version only vouches for what was decided from the row as read. Raises StaleVersion when the row was
    changed or deleted meanwhile: read it again and decide again.
    """
    if computed := [name for name, value in changes.items() if hasattr(value, "resolve_expression")]:
        raise TypeError(f"Give values, not expressions, for {', '.join(computed)}: compute them from the instance.")
    seen = instance.version  # type: ignore[attr-defined]
    rows = type(instance)._base_manager.using(instance._state.db).filter(pk=instance.pk, version=seen)
    if not rows.update(**changes, version=seen + 1):
        raise StaleVersion(
            f"{instance._meta.label} {instance.pk} is not at version {seen} any more: somebody else changed or deleted "
            "it. Read it again and decide again."
        )
    for name, value in {**changes, "version": seen + 1}.items():
        setattr(instance, name, value)


def update_each(
    queryset: "models.QuerySet[M]", changes_of: Callable[[M], Mapping[str, Any]], *, limit: int | None = None
) -> Report:
    """Write `changes_of(row)`, and only these columns, to each row that still meets the criteria at that moment.

    For comparison with locks. `QuerySet.update` replaces `save()`, which would write stale fields over newer changes.
    No lock, no transaction: two processes may both compute a row, and the second UPDATE matches nothing. An exception
    in `changes_of` is that row's failure, and the next row follows. At most `limit` rows are handled.
    """
    refuse_unlockable(queryset)
    queryset = queryset.using(queryset.select_for_update().db)
    report = Report(rounds=1)
    with counting_queries(queryset.db, report):
        for row in _in_chunks(queryset.order_by("pk")):
            if limit is not None and report.handled >= limit:
                break
            try:
                changes = changes_of(row)
            except Exception as error:  # noqa: BLE001  whatever it raises is that row's outcome, kept in the report
                report.errors[row.pk] = error
                report.note(row.pk, Outcome.FAILED)
                continue
            is_written = queryset.order_by().filter(pk=row.pk).update(**changes)
            report.note(row.pk, Outcome.DONE if is_written else Outcome.ALREADY_DONE)
    return report


def _in_chunks(queryset: "models.QuerySet[M]") -> Iterator[M]:
    """The rows as they are when their chunk is read; a server-side cursor would need a transaction."""
    chunk = list(queryset[:CHUNK])
    while chunk:
        yield from chunk
        chunk = list(queryset.filter(pk__gt=chunk[-1].pk)[:CHUNK]) if len(chunk) == CHUNK else []
