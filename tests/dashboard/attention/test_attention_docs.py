"""What docs/attention.md promises to who adds lines: its example runs as it stands, and its table is complete."""

import re
from pathlib import Path

import pytest

from dashboard.attention import inbox, queues
from dashboard.attention.inbox import LASTS, LONGEST
from dashboard.attention.thresholds import USUAL
from tasks import panels
from tasks.panels import Severity, Snapshot

pytestmark = pytest.mark.django_db
DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "attention.md").read_text()


def test_the_example_adds_its_line_and_its_figure(monkeypatch):
    panels.load()
    for registry in ("ATTENTION", "FIGURES"):
        monkeypatch.setattr(panels, registry, [])
    [example] = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    exec(compile(example, "parcels/attention.py", "exec"), {"__name__": "parcels.attention"})
    snapshot = Snapshot()
    [line] = inbox.gather(snapshot, lambda right: right == "parcels.view_parcel").lines
    assert (line.text, line.severity, line.size) == ("3 parcels are lost.", Severity.LOSING, 3)
    [figure] = inbox.figures(snapshot, lambda right: True)
    assert figure.value == "3"


def test_its_limits_are_those_of_the_code():
    assert f"waits for {USUAL['blocked_seconds']} s or longer" in DOCUMENT
    assert f"waited for {USUAL['late_seconds'] // 60} minutes" in DOCUMENT
    assert f"or {queues.RECOVERY_SECONDS} s have not" in DOCUMENT
    assert (USUAL["idle_seconds"], USUAL["open_seconds"]) == (60, 15 * 60)
    assert f"{LONGEST.days} days" in DOCUMENT
    assert set(LASTS) == {"grows", "1h", "8h", "3d"}
