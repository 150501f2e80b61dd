"""The dashboard's own lines for "Needs attention", by what they are about; see tasks/panels.py."""

from dashboard.attention import failures, queues, recovery, schedule, sessions

__all__ = ["failures", "queues", "recovery", "schedule", "sessions"]
