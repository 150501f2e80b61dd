"""`list_tasks`: the tasks that match, with their verdicts, as a table, CSV or JSON."""

import csv
import io
from typing import Any

from django.core.management.base import CommandParser

from tasks.commands import OperatorCommand, Options, Report, UsageError, types
from tasks.commands.output import Part, Table
from tasks.commands.selection import COLUMNS, add_filters, filter_of, row_of
from tasks.diagnosis import Facts, Finding, decide, gather
from tasks.framework import payload
from tasks.models import Task, TaskStatus
from tasks.operations.search import NEWEST_FIRST, OLDEST_FIRST, SORTS, PageCursor, find
from tasks.support.durations import spoken
from tasks.support.reading import cell

HEADINGS = ("ID", "TASK", "QUEUE", "STATUS", "ATTEMPT", "AGE", "VERDICT")
LIMIT, MOST = 50, 100_000
AT_ONCE = 500  # tasks whose facts are gathered together
SEARCH_SECONDS = 10.0


class Command(OperatorCommand):
    help = (
        "List tasks with the verdict on each: why it does not run, or how it ended. Filters are those of "
        "`requeue_tasks`; without one it lists the newest tasks. A search ends after 10 s and says how far it came."
    )
    examples = ("--status FAILED --queue billing --limit 20", "--older-than 7d --sort id --csv > old.csv")
    changes_data = False

    def add_options(self, parser: CommandParser) -> None:
        most = types.whole_number(1, MOST, f"a limit: a whole number from 1 to {MOST}")
        parser.add_argument("--limit", type=most, default=LIMIT, metavar="N", help=f"At most N (default {LIMIT}).")
        order = "id lists the oldest first. By default the newest come first (--sort=-id)."
        parser.add_argument("--sort", default=NEWEST_FIRST, metavar="COLUMN", help=order)
        parser.add_argument("--csv", action="store_true", help="Print rows for a spreadsheet.")
        add_filters(parser)

    def run(self, options: Options) -> Report:
        if options["csv"] and options["json"]:
            raise UsageError("Give --csv or --json, not both.")
        if options["sort"] not in SORTS:
            names = ", ".join(sorted(SORTS, reverse=True))
            raise UsageError(f"No index serves the order {options['sort']!a}: choose one of {names}.")
        cursor = PageCursor(is_ascending=options["sort"] == OLDEST_FIRST)
        chosen = filter_of(options)
        if chosen.due and not chosen.statuses:
            chosen = chosen.with_statuses(TaskStatus.READY)
        listing = find(chosen, cursor, limit=options["limit"], seconds=SEARCH_SECONDS)
        judged = [(task, finding, facts) for facts, chunk in in_chunks(listing.rows) for task, finding in chunk]
        rows = [row_of(task, finding) for task, finding, _ in judged]
        reached, note = listing.looked_down_to, ""
        if reached is not None:
            note = f"The search took {SEARCH_SECONDS:g} s and ended at id {reached}: add a filter."
        elif listing.newer if cursor.is_ascending else listing.older:
            note = f"More tasks match than these {len(rows)}: raise --limit, or add a filter."
        is_note_apart = options["csv"] or reached is not None
        return Report(
            data={"tasks": rows, "is_complete": not note, "searched_to_id": reached},
            text=as_csv(rows) if options["csv"] else as_text(judged, "" if is_note_apart else note, chosen.text),
            problems=[note] if note and is_note_apart else [],
        )


def in_chunks(tasks: list[Task]) -> list[tuple[Facts, list[tuple[Task, Finding]]]]:
    """The findings on tasks, with the facts behind them."""
    chunks = [tasks[start : start + AT_ONCE] for start in range(0, len(tasks), AT_ONCE)]
    known = [(gather(chunk), chunk) for chunk in chunks]
    return [(facts, [(task, decide(task, facts)) for task in chunk]) for facts, chunk in known]


def as_text(judged: list[tuple[Task, Finding, Facts]], note: str, searched: str) -> list[Part]:
    rows = [
        (
            task.pk,
            task.task_path.rpartition(".")[2],
            task.queue_name,
            task.status,
            f"{task.attempt}/{task.max_attempts}",
            spoken(max(0.0, (facts.now - task.created_at).total_seconds())),
            finding.sentence,
        )
        for task, finding, facts in judged
    ]
    if rows:
        return [Table(HEADINGS, rows), *([note] if note else [])]
    blind = " Encrypted arguments are not searched: ROWLOCK_PAYLOAD_KEYS is set." if searched and payload.keys() else ""
    return [f"No task was found.{blind}"]


def as_csv(rows: list[dict[str, Any]]) -> str:
    """The rows under the names of their columns; no cell is a formula."""
    written = io.StringIO()
    writer = csv.DictWriter(written, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: cell(value) if isinstance(value, str) else value for name, value in row.items()})
    return written.getvalue().removesuffix("\n")
