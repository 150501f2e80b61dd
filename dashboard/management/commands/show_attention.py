"""`show_attention`: list what needs a person, worst first, like the overview."""

from typing import Any

from dashboard.attention import inbox
from dashboard.attention.inbox import Known
from tasks.commands import OperatorCommand, Options, Report
from tasks.commands.base import UNHEALTHY
from tasks.panels import AttentionLine, Snapshot
from tasks.support.durations import spoken
from tasks.support.reading import one_line


class Command(OperatorCommand):
    help = (
        "Show what needs a person, worst first, with the next step; what somebody has acknowledged stands apart. Exit "
        "status 3 when a line that is not acknowledged says that work waits, is lost, or wants a decision."
    )
    examples = ("", "--json")
    changes_data = False

    def run(self, options: Options) -> Report:
        snapshot = Snapshot()
        found = inbox.gather(snapshot, lambda right: True)
        red = sum(line.is_red for line in found.lines)
        written = [part for line in found.lines for part in as_lines(line, snapshot)] or ["Nothing needs attention."]
        for known in found.known:
            how = known.acknowledgement
            written.append(f"  acknowledged: {known.line.text} (by {how.actor}: {how.reason})")
        return Report(
            data={"lines": [as_data(line) for line in found.lines], "acknowledged": list(map(known_data, found.known))},
            text="\n".join(map(one_line, written)),
            failure="" if not red else f"{red} {'line needs' if red == 1 else 'lines need'} a person.",
            exit_status=UNHEALTHY,
        )


def as_data(line: AttentionLine) -> dict[str, Any]:
    return {
        "line": line.name,
        "text": line.text,
        "why": line.why,
        "severity": line.severity.name.lower(),
        "since": line.since.isoformat() if line.since else None,
        "size": line.size,
        "command": line.step.command or None,
    }


def known_data(known: Known) -> dict[str, Any]:
    how = known.acknowledgement
    until = how.until.isoformat() if how.until else None
    own = {"actor": how.actor, "reason": how.reason, "until": until, "until_more_than": how.size}
    return as_data(known.line) | own


def as_lines(line: AttentionLine, snapshot: Snapshot) -> list[str]:
    """The line for a terminal: text, age, reason, and the command to type."""
    since = f" For {spoken((snapshot.now - line.since).total_seconds())}." if line.since else ""
    command = f"$ {line.step.command}" if line.step.command else ""
    further = filter(None, (line.why, command, f"line: {line.name}"))
    return [f"{'!' if line.is_red else '-'} {line.text}{since}", *(f"    {part}" for part in further)]
