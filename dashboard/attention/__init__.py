"""The dashboard's own lines of "Needs attention", one module per subject; see tasks/panels.py."""

from dashboard.attention import queues  # its figures come first on the overview

# isort: split
from dashboard.alerts import watching  # noqa: F401  it registers what `queue_status --alert` calls
from dashboard.attention import alerts, cleanup, failures, schedule, sessions

__all__ = ["alerts", "cleanup", "failures", "queues", "schedule", "sessions"]
