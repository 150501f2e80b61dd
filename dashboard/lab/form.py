"""Loads worth one click, and what each of them shows."""

from dataclasses import dataclass, replace
from typing import Any

from django import forms
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard.lab.patterns import PATTERNS
from dashboard.lab.plan import LIMITS, Plan
from dashboard.lab.records import MOST_RUNS
from tasks.admin.forms import WholeNumberField


@dataclass(frozen=True)
class Preset:
    """A named load: the patterns to compare, and the numbers of the plan."""

    name: str
    label: Promise
    text: Promise
    patterns: tuple[str, ...]
    numbers: dict[str, Any]
    vary: str = ""
    values: str = ""

    def initial(self) -> dict[str, Any]:
        return {"patterns": list(self.patterns), **self.numbers, "vary": self.vary, "values": self.values}


PRESETS = (
    Preset(
        "double-click",
        gettext_lazy("The Monday morning double click"),
        gettext_lazy("Two processes begin the same mailing at the same moment."),
        ("unsafe", "double_checked", "skip_locked_claim"),
        {"workers": 2, "items": 60, "work_ms": 10},
    ),
    Preset(
        "kill",
        gettext_lazy("kill -9 in the middle"),
        gettext_lazy("Three workers are killed while they work: what is repeated, what is lost, what hangs for ever?"),
        ("double_checked", "skip_locked_claim", "cache_lock_naive", "account_pessimistic"),
        {"workers": 4, "items": 80, "work_ms": 20, "kill": 3},
    ),
    Preset(
        "cron",
        gettext_lazy("Cron overlaps"),
        gettext_lazy("Eight runs of one command, each begun before the last had ended."),
        ("unsafe", "double_checked", "double_checked_batched", "advisory_lock", "cache_lock"),
        {"workers": 8, "items": 120, "work_ms": 2},
    ),
    Preset(
        "hot-account",
        gettext_lazy("One hot account"),
        gettext_lazy("Everybody changes one balance, with a little work between reading and writing."),
        ("account_unsafe", "account_pessimistic", "account_optimistic"),
        {"workers": 8, "items": 120, "work_ms": 5},
    ),
    Preset(
        "outsiders",
        gettext_lazy("Others hold the rows"),
        gettext_lazy("Two more processes lock and change the same rows while the work goes on."),
        ("unsafe", "double_checked", "double_checked_nowait", "optimistic_complete", "skip_locked_claim"),
        {"workers": 4, "items": 80, "work_ms": 5, "outside_lockers": 2},
    ),
    Preset(
        "crossing",
        gettext_lazy("Where the lines cross"),
        gettext_lazy("A lock held during the work against a claim by version, as the work takes longer."),
        ("skip_locked_held", "optimistic_claim"),
        {"workers": 4, "items": 120},
        "work_ms",
        "0, 1, 2, 5, 10, 20",
    ),
    Preset(
        "crowd",
        gettext_lazy("One more worker"),
        gettext_lazy("The same two with more and more workers: who gains, and who only gets in the way?"),
        ("skip_locked_held", "optimistic_claim"),
        {"items": 120, "work_ms": 2},
        "workers",
        "1, 2, 4, 8",
    ),
    Preset(
        "all",
        gettext_lazy("All patterns, same load"),
        gettext_lazy("Every pattern, one after the other; takes about a minute."),
        (),
        {"workers": 4, "items": 100, "work_ms": 2},
    ),
)
BY_NAME = {preset.name: preset for preset in PRESETS}


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
