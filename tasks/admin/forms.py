"""Form fields with the checks of the commands' options, and the reason that a person gives."""

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from django import forms
from django.http import QueryDict

from tasks.support import reading


def checked(parse: Callable[[str], Any], written: str) -> Any:
    """Parse the value like a command, None for an empty field. Raises ValidationError with the command's message."""
    if not written.strip():
        return None
    try:
        return parse(written.strip())
    except ArgumentTypeError as error:
        raise forms.ValidationError(str(error)) from error


class WholeNumberField(forms.IntegerField):
    """A whole number in plain digits; Django's own field also accepts 1_000 and the digits of other scripts."""

    def to_python(self, value: Any) -> int | None:
        return super().to_python(plain(value, reading.WHOLE, self))


class DecimalField(forms.DecimalField):
    """A sum in plain digits; Django's own field also accepts 1e1, 1_000 and the digits of other scripts."""

    def to_python(self, value: Any) -> Decimal | None:  # type: ignore[override]  # as of Django's own, under IntegerField
        return super().to_python(plain(value, reading.PLAIN_DECIMAL, self))


def plain(value: Any, pattern: re.Pattern[str], field: forms.Field) -> Any:
    """Return the text if it matches; raise ValidationError with the field's own message if not."""
    written = value.strip() if isinstance(value, str) else value
    if isinstance(written, str) and written and not pattern.fullmatch(written):
        raise forms.ValidationError(field.error_messages["invalid"], code="invalid")
    return written


def reason_of(post: QueryDict) -> str:
    """The posted reason. Raises Unreadable, which the site answers with 400."""
    return reading.reason(post.get("reason", ""))
