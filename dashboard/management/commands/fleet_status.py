"""`fleet_status`: the state of every installation, worst first, and what needs attention anywhere."""

from typing import Any

from django.core.management.base import CommandError

from dashboard.fleet import look, words
from dashboard.fleet.answers import MINUTES, Line
from dashboard.fleet.look import Look, State
from tasks.commands import OperatorCommand, Options, Report
from tasks.commands.base import UNHEALTHY
from tasks.commands.output import Part, Table
from tasks.support.durations import spoken

HEADINGS = (
    "INSTALLATION", "STATE", "CRITICAL", "WARNINGS", "READY", "OLDEST", "RUNNING", "FAILED", "DONE/MIN", "WORKERS",
    "BLOCKED", "VERSION", "SERVER", "AS OF",
)  # fmt: skip
LINE_HEADINGS = ("INSTALLATION", "SEVERITY", "SINCE", "NEEDS ATTENTION")
LINES_SHOWN = 20


class Command(OperatorCommand):
    help = (
        "Ask every installation of ROWLOCK_FLEET and of the admin's table for its state, within a second in all. Exit "
        "status 3 when one is critical, or cannot be asked."
    )
    examples = ("", "--watch 10")
    changes_data = False
    is_watchable = True

    def run(self, options: Options) -> Report:
        found = look.look(look.kept())
        if not found.states and not found.faults:
            raise CommandError("No installation is configured: set ROWLOCK_FLEET, or add one in the admin.")
        problems = [*found.faults, *filter(None, map(problem_with, found.states))]
        return Report(
            data={"installations": list(map(as_data, found.states)), "attention": attention(found)},
            text=tables(found),
            problems=problems,
            failure="Unhealthy: an installation is critical, or its state is not known." if problems else "",
            exit_status=UNHEALTHY,
        )


def problem_with(state: State) -> str:
    """The sentence for one that needs a person; empty for all others."""
    if state.problem:
        return f"{state.name}: {words.sentence(state.problem, state.detail)}"
    return f"{state.name} is critical: {state.url}/admin/" if state.is_trouble else ""


def as_data(state: State) -> dict[str, Any]:
    told = state.summary
    known: dict[str, Any] = {
        "name": state.name,
        "url": state.url,
        "problem": state.problem and str(state.problem),
        "detail": state.detail,
        "age_seconds": round(state.age_seconds, 1) if told else None,
        "summary": None,
    }
    if told is not None:
        queues = [vars(queue) for queue in told.queues]
        known["summary"] = {**vars(told), "queues": queues, "throughput": list(told.throughput)}
    return known


def attention(found: Look) -> list[dict[str, Any]]:
    return [
        {
            "installation": state.name,
            "severity": line.severity.name.lower(),
            "text": line.text,
            "since": line.since.isoformat() if line.since else None,
            "url": line.url,
        }
        for state, line in found.lines
    ]


def tables(found: Look) -> list[Part]:
    parts: list[Part] = [Table(HEADINGS, list(map(row, found.states)), alarming=("CRITICAL", "FAILED"))]
    if found.lines:
        parts.append(Table(LINE_HEADINGS, [line_row(*one) for one in found.lines[:LINES_SHOWN]]))
    if len(found.lines) > LINES_SHOWN:
        parts.append(f"… and {len(found.lines) - LINES_SHOWN} more lines; --json lists them all.")
    return parts


def row(state: State) -> tuple[Any, ...]:
    told = state.summary
    label = words.label(state.problem) if state.problem else told.health if told else None
    if told is None:
        return (state.name, label, *[None] * (len(HEADINGS) - 2))
    oldest = None if told.oldest_seconds is None else spoken(told.oldest_seconds)
    return (
        state.name, label, told.critical, told.warnings, told.ready, oldest, told.running, told.failed,
        f"{sum(told.throughput) / MINUTES:.1f}", f"{told.alive} of {told.workers}", told.blocked, told.version,
        told.server_version, f"{spoken(state.age_seconds)} ago" if state.problem else "now",
    )  # fmt: skip


def line_row(state: State, line: Line) -> tuple[Any, ...]:
    at = f"{line.since:%Y-%m-%d %H:%M} UTC" if line.since else None
    return state.name, line.severity.name.lower(), at, line.text
