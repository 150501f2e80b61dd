"""Optimistic locking: compare-and-swap on a row's `version` (patterns, system C)."""

from typing import Any

from django.db import models

from tasks.exceptions import StaleVersion


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
