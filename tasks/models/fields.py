"""Array columns for projects without `django.contrib.postgres` in INSTALLED_APPS."""

from typing import Any

from django.contrib.postgres import fields
from django.core.checks import CheckMessage

APP_IS_MISSING = "postgres.E005"


class ArrayField(fields.ArrayField):
    """Django 6 asks for that app, whose type handlers and lookups this column does not use."""

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return [message for message in super().check(**kwargs) if message.id != APP_IS_MISSING]

    def deconstruct(self) -> Any:
        """As Django's own, so that migrations see no difference."""
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.contrib.postgres.fields.ArrayField", args, kwargs
