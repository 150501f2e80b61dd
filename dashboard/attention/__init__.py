"""The dashboard's own lines of "Needs attention", one module per subject; see tasks/panels.py."""

from dashboard.attention import failures, queues, schedule, sessions

__all__ = ["failures", "queues", "schedule", "sessions"]
