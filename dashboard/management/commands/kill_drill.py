"""`kill_drill`: kill its own worker in the middle of a task, and report what happens to the row."""

from collections.abc import Sequence
from dataclasses import asdict

from dashboard.lab import drill, runner
from dashboard.lab.drill import Event
from tasks.commands import OperatorCommand, Options, Report
from tasks.commands.output import Part, Table

HEADINGS = ("WHAT HAPPENED", "AFTER THE KILL", "STATUS", "VERSION", "ATTEMPT", "WORKER")


class Command(OperatorCommand):
    help = (
        "Start a worker on a queue of its own, kill it with SIGKILL in the middle of a task, and tell what becomes of "
        "the row, version by version."
    )
    examples = ("", "--json")
    changes_data = False

    def run(self, options: Options) -> Report:
        runner.refuse_unless_allowed()
        with self.signals.finishing_item():
            events = drill.kill_a_worker(lambda effects: self.signals.received is None)
        recovered_ms = drill.recovered_ms(events)
        text: list[Part] = [table_of(events), f"The task was running again {recovered_ms} ms after the kill."]
        return Report(data={"recovered_ms": recovered_ms, "events": [asdict(event) for event in events]}, text=text)


def table_of(events: Sequence[Event]) -> Table:
    lines = [
        (event.text, f"{event.ms} ms", event.status, f"v{event.version}", event.attempt, event.worker or None)
        for event in events
    ]
    return Table(HEADINGS, lines)
