"""Verdicts: the reason for a task's state, from a closed list, the same on pages, in commands and in metrics."""

from tasks.verdicts.decision import decide, judge, verdict_of
from tasks.verdicts.facts import Facts, KeyState, WorkerSession, gather
from tasks.verdicts.finding import Finding, Link, Verdict

__all__ = [
    "Facts",
    "Finding",
    "KeyState",
    "Link",
    "Verdict",
    "WorkerSession",
    "decide",
    "gather",
    "judge",
    "verdict_of",
]
