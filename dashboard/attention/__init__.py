"""The dashboard's own lines of "Needs attention", one module per subject; see tasks/panels.py."""

from dashboard.attention import cleanup, failures, growth, queues, schedule, sessions

__all__ = ["cleanup", "failures", "growth", "queues", "schedule", "sessions"]
