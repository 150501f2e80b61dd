"""Form fields with the checks of the commands' options, and the confirmation that every change by hand needs."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

from django import forms
from django.http import QueryDict
from django.utils.translation import gettext_lazy as _

from tasks.commands import types
from tasks.operations.tokens import LONGEST_TOKEN, is_token, new_token
from tasks.support import reading


class OptionField(forms.CharField):
    """Text that `parse` reads like a command's option, with the command's error message; None for an empty field."""

    def __init__(self, parse: Callable[[str], Any], **options: Any) -> None:
        super().__init__(**{"required": False, **options})
        self.parse = parse

    def clean(self, value: Any) -> Any:
        written: str = super().clean(value)
        try:
            return self.parse(written) if written else None
        except ArgumentTypeError as error:
            raise forms.ValidationError(str(error)) from error


class WholeNumberField(forms.IntegerField):
    """A whole number in plain digits; Django's own fields also accept 1_000, 1e1 and the digits of other scripts."""

    pattern = reading.WHOLE

    def to_python(self, value: Any) -> Any:
        written = value.strip() if isinstance(value, str) else value
        if isinstance(written, str) and written and not self.pattern.fullmatch(written):
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid")
        return super().to_python(written)


class DecimalField(WholeNumberField, forms.DecimalField):
    """A sum in plain digits."""

    pattern = reading.PLAIN_DECIMAL


class ConfirmedForm(forms.Form):
    """A change by hand: after its own fields a reason for the audit, and a token that carries it out only once.

    The view passes the token to `tasks.operations.tokens.once`.
    """

    reason = OptionField(types.reason, label=_("Reason (optional, audited)"), max_length=reading.LONGEST_REASON)
    token = forms.CharField(widget=forms.HiddenInput, initial=new_token, max_length=LONGEST_TOKEN)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.order_fields([name for name in self.fields if name not in ConfirmedForm.base_fields])

    def clean_reason(self) -> str:
        return self.cleaned_data["reason"] or ""

    def clean_token(self) -> str:
        token: str = self.cleaned_data["token"]
        if not is_token(token):
            raise forms.ValidationError(_("This form was not made by this page. Open the page again."))
        return token


class PreviewedForm(ConfirmedForm):
    """A change that the first post only previews and the second, with `confirmed`, carries out.

    It needs no token: a repeated post finds nothing more to change.
    """

    token = None  # type: ignore[assignment]  # as Django removes a field of a base class

    @classmethod
    def read(cls, post: QueryDict) -> dict[str, Any] | None:
        """The values of the form; None if no page of ours made it. Raises Unreadable for the reason alone."""
        form = cls(post)
        if "reason" in form.errors:
            raise reading.Unreadable(str(form.errors["reason"][0]))
        return {**form.cleaned_data, "confirmed": "confirmed" in post} if form.is_valid() else None


def reason_of(post: QueryDict) -> str:
    """The posted reason. Raises Unreadable, which the site answers with 400."""
    return reading.reason(post.get("reason", ""))
