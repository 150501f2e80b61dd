"""Verdicts: the reason for a task's state, from a closed list, the same on pages, in commands and in metrics."""

from tasks.diagnosis.decision import decide, verdict_of
from tasks.diagnosis.facts import Facts, KeyState, WorkerSession, gather
from tasks.diagnosis.finding import Finding, Link, Verdict

__all__ = ["Facts", "Finding", "KeyState", "Link", "Verdict", "WorkerSession", "decide", "gather", "verdict_of"]
