"""Loads worth one click, and what each of them shows."""

from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


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
        _("The Monday morning double click"),
        _("Two processes begin the same mailing at the same moment."),
        ("unsafe", "double_checked", "skip_locked_claim"),
        {"workers": 2, "items": 60, "work_ms": 10},
    ),
    Preset(
        "kill",
        _("kill -9 in the middle"),
        _("Three workers are killed while they work: what is repeated, what is lost, what hangs for ever?"),
        ("double_checked", "skip_locked_claim", "cache_lock_naive", "account_pessimistic"),
        {"workers": 4, "items": 80, "work_ms": 20, "kill": 3},
    ),
    Preset(
        "cron",
        _("Cron overlaps"),
        _("Eight runs of one command, each begun before the last had ended."),
        ("unsafe", "double_checked", "double_checked_batched", "advisory_lock", "cache_lock"),
        {"workers": 8, "items": 120, "work_ms": 2},
    ),
    Preset(
        "hot-account",
        _("One hot account"),
        _("Everybody changes one balance, with a little work between reading and writing."),
        ("account_unsafe", "account_pessimistic", "account_optimistic"),
        {"workers": 8, "items": 120, "work_ms": 5},
    ),
    Preset(
        "outsiders",
        _("Others hold the rows"),
        _("Two more processes lock and change the same rows while the work goes on."),
        ("unsafe", "double_checked", "double_checked_nowait", "optimistic_complete", "skip_locked_claim"),
        {"workers": 4, "items": 80, "work_ms": 5, "outside_lockers": 2},
    ),
    Preset(
        "crossing",
        _("Where the lines cross"),
        _("A lock held during the work against a claim by version, as the work takes longer."),
        ("skip_locked_held", "optimistic_claim"),
        {"workers": 4, "items": 120},
        "work_ms",
        "0, 1, 2, 5, 10, 20",
    ),
    Preset(
        "crowd",
        _("One more worker"),
        _("The same two with more and more workers: who gains, and who only gets in the way?"),
        ("skip_locked_held", "optimistic_claim"),
        {"items": 120, "work_ms": 2},
        "workers",
        "1, 2, 4, 8",
    ),
    Preset(
        "all",
        _("All patterns, same load"),
        _("Every pattern, one after the other; takes about a minute."),
        (),
        {"workers": 4, "items": 100, "work_ms": 2},
    ),
)
BY_NAME = {preset.name: preset for preset in PRESETS}
