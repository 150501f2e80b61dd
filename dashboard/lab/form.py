"""The lab's form: patterns, the numbers of the plan, and one number to vary."""

from dataclasses import replace
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard.lab.patterns import PATTERNS
from dashboard.lab.plan import LIMITS, Plan
from dashboard.lab.records import MOST_RUNS
from tasks.admin.settings_form import WholeNumberField

LABELS = {
    "workers": gettext_lazy("Workers"),
    "items": gettext_lazy("Items"),
    "work_ms": gettext_lazy("Work of each item, ms"),
    "kill": gettext_lazy("Kills (-9)"),
    "outside_lockers": gettext_lazy("Outside lockers"),
    "remote_ms": gettext_lazy("Slow remote call, ms"),
    "seed": gettext_lazy("Seed"),
    "seconds": gettext_lazy("At most so many seconds"),
}
# Limits for a page, because the server has other work; the command allows more.
MOST = {"workers": 12, "items": 2000, "work_ms": 1000, "seconds": 120, "remote_ms": 2000}
VARIED = ("workers", "work_ms", "items", "outside_lockers")


class LabForm(forms.Form):
    patterns = forms.MultipleChoiceField(
        label=gettext_lazy("Patterns"),
        choices=lambda: [(name, name) for name in PATTERNS],  # apps register theirs when they are loaded
        widget=forms.CheckboxSelectMultiple,
        required=False,
        help_text=gettext_lazy("None ticked: all of them."),
    )
    vary = forms.ChoiceField(
        label=gettext_lazy("Vary"),
        choices=[("", gettext_lazy("nothing")), *((name, LABELS[name]) for name in VARIED)],
        required=False,
    )
    values = forms.CharField(
        label=gettext_lazy("over"),
        required=False,
        max_length=100,
        help_text=gettext_lazy("Such as 1, 2, 4, 8."),
    )

    alongside = forms.BooleanField(
        label=gettext_lazy("Even while another run is at work"),
        required=False,
        help_text=gettext_lazy("The numbers of both suffer."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, label in LABELS.items():
            least, most = LIMITS[name]
            self.fields[name] = WholeNumberField(
                label=label,
                min_value=least,
                max_value=MOST.get(name, most),
                initial=Plan.__dataclass_fields__[name].default,
            )

    @property
    def numbers(self) -> list[forms.BoundField]:
        return [self[name] for name in LABELS]

    def clean_values(self) -> list[int]:
        """The values to vary over, each within the bounds of its number."""
        name, text = self.cleaned_data.get("vary", ""), self.cleaned_data["values"]
        if not name:
            return []
        field, values = self.fields[name], [part.strip() for part in text.split(",") if part.strip()]
        if len(values) < 2:
            raise forms.ValidationError(_("Give at least two values, separated by commas."))
        return [field.clean(value) for value in values]

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        number = len(cleaned.get("patterns") or PATTERNS) * max(1, len(cleaned.get("values") or []))
        if number > MOST_RUNS:
            told = {"number": number, "most": MOST_RUNS}
            raise forms.ValidationError(_("That is %(number)d runs: ask for %(most)d at most.") % told)
        return cleaned

    def plans(self) -> list[Plan]:
        """The requested runs, in order."""
        asked = self.cleaned_data
        numbers = {name: asked[name] for name in LABELS}
        plans = [Plan(name, **numbers, alongside=asked["alongside"]) for name in asked["patterns"] or PATTERNS]
        if not asked["vary"]:
            return plans
        return [replace(plan, **{asked["vary"]: value}) for plan in plans for value in asked["values"]]
