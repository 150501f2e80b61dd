"""The form for an action's settings, with the same checks and error messages as the commands' options."""

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from tasks.commands import types
from tasks.operations.bulk import Settings
from tasks.support import reading

LONGEST_SPREAD_MINUTES = 7 * 24 * 60


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


class SettingsForm(forms.Form):
    """Every field that an action may need; `form_of` keeps those of one action."""

    queue_name = forms.CharField(label=_("Queue"), required=False, widget=forms.TextInput(attrs={"list": "queues"}))
    priority = forms.CharField(label=_("Priority, -100 to 100; 100 runs first"), required=False)
    run_after = forms.CharField(label=_("Not before, like 2030-01-31T03:00:00+02:00, or now"), required=False)
    spread_minutes = WholeNumberField(
        label=_("Spread evenly over so many minutes; empty: all at once"),
        required=False,
        min_value=1,
        max_value=LONGEST_SPREAD_MINUTES,
    )

    def clean_queue_name(self) -> str | None:
        return checked(types.destination, self.cleaned_data["queue_name"])

    def clean_priority(self) -> int | None:
        return checked(types.priority, self.cleaned_data["priority"])

    def clean_run_after(self) -> datetime | None:
        return checked(types.moment, self.cleaned_data["run_after"])


def form_of(names: Iterable[str], data: Mapping[str, Any]) -> SettingsForm:
    """The form with only these fields, filled in from the posted data."""
    form = SettingsForm(data, auto_id="set-%s")
    for name in set(form.fields) - set(names):
        del form.fields[name]
    return form


def settings_of(form: SettingsForm, reason: str, *, force: bool) -> Settings:
    """The form's valid values as Settings."""
    known = {field.name for field in fields(Settings)} & set(getattr(form, "cleaned_data", {}))
    return replace(Settings(reason=reason, force=force), **{name: form.cleaned_data[name] for name in known})
