"""The shared part of commands on many tasks: filters, rows, the verb, and the report of refusals."""

from dataclasses import fields
from typing import Any

from django.core.management.base import CommandParser

from tasks.commands import types
from tasks.commands.base import OperatorCommand, Options, Report, UsageError, operator
from tasks.commands.output import counted, said
from tasks.diagnosis import Finding
from tasks.models import Task, TaskStatus
from tasks.operations import Progress, Result, Settings, Verb
from tasks.operations.filters import CONDITIONS, DUE, TaskFilter

COLUMNS = ("id", "task_path", "queue", "status", "version", "verdict", "attempt", "max_attempts", "run_after", "worker")
SETTINGS = [field.name for field in fields(Settings)]


def add_filters(parser: CommandParser) -> None:
    """Add ids and the options that narrow down which tasks."""
    parser.add_argument("ids", nargs="*", type=types.task_id, metavar="ID", help="Ids of tasks.")
    group = parser.add_argument_group(
        "filters", "Tasks that match all of these; --status, --queue, --task may be repeated."
    )
    for field, kind, metavar, text, choices in (
        ("statuses", types.status, "STATUS", "Their status.", TaskStatus.values),
        ("due", types.due, "WHEN", "Of those that wait: due now, or later.", DUE),
        ("queue_names", types.name, "QUEUE", "Their queue.", None),
        ("task_paths", types.text, "PATH", "Their function.", None),
        ("text", types.text, "TEXT", "Text in their arguments.", None),
        ("ordering_key", types.name, "K", "Their ordering key.", None),
        ("concurrency_key", types.name, "K", "Their concurrency key.", None),
        ("worker_id", types.name, "ID", "Who holds or has completed them.", None),
        ("error", types.text, "ERROR", "Text in the error of their latest attempt.", None),
        ("failure", types.failure, "HASH", "How their latest attempt failed, as the page Failures names it.", None),
        ("older_than", types.duration, "D", "Created longer ago, like 90s or 7d.", None),
    ):
        condition = CONDITIONS[field]
        action = "append" if condition.may_repeat else "store"
        group.add_argument(
            condition.option, dest=field, action=action, type=kind, metavar=metavar, choices=choices, help=text
        )


def filter_of(options: Options) -> TaskFilter:
    """The filter that these options give; empty without any."""
    given: dict[str, Any] = {name: options[name] for name in CONDITIONS if options[name] not in (None, [])}
    many = {name: tuple(dict.fromkeys(values)) for name, values in given.items() if CONDITIONS[name].may_repeat}
    return TaskFilter(**{**given, **many})


def row_of(task: Task, finding: Finding) -> dict[str, Any]:
    """The task as JSON and CSV name it; `worker` holds it or has completed it."""
    known = {
        "queue": task.queue_name,
        "verdict": finding.verdict.value,
        "run_after": task.run_after.isoformat(),
        "worker": task.claimed_by or task.finished_by,
    }
    return {name: known[name] if name in known else getattr(task, name) for name in COLUMNS}


class TaskCommand(OperatorCommand):
    """Performs `verb` on the tasks that ids and filters select.

    `participle` (requeued, edited) is also the key of the count. Without ids and --status, `default_statuses` hold.
    Options whose destination is a field of Settings or of TaskFilter set that field.
    """

    verb: type[Verb]
    participle: str
    default_statuses: tuple[str, ...]

    def add_options(self, parser: CommandParser) -> None:
        add_filters(parser)
        self.add_settings(parser)

    def add_settings(self, parser: CommandParser) -> None:
        """Add the options of this verb."""

    def run(self, options: Options) -> Report:
        settings = Settings(**{name: options[name] for name in SETTINGS if name in options})
        chosen = read_filter(options, self.default_statuses)
        with self.chunks(options) as progress:
            result = self.verb.act(chosen, operator(), settings, dry_run=options["dry_run"], progress=progress)
            return self.report(result, options, progress)

    def report(self, result: Result, options: Options, progress: Progress) -> Report:
        return report_of(result, self.participle, options)


def read_filter(options: Options, default_statuses: tuple[str, ...]) -> TaskFilter:
    """The filter from the options; without ids and --status it selects only the default statuses.

    Raises UsageError without any condition, because no command may act on every task by mistake. Also for all COMPLETED
    tasks: each would be refused, and there may be ten million.
    """
    chosen = filter_of(options)
    if chosen.is_empty:
        raise UsageError(
            "Which tasks? Name ids (4711 4712) or at least one of --status, --due, --queue, --task, --text, "
            "--ordering-key, --worker, --error, --failure and --older-than."
        )
    if not chosen.ids and TaskStatus.COMPLETED in chosen.statuses:
        raise UsageError("COMPLETED tasks stay as they are. To have their effect again, use `enqueue_task`.")
    if chosen.ids or chosen.statuses:
        return chosen
    return chosen.with_statuses(*default_statuses)


def report_of(result: Result, verb: str, options: Options, **extra: Any) -> Report:
    """The report of an action on tasks: `verb` (requeued, edited, cancelled) is also the key of its count."""
    refused = [
        {"id": id, "reason": each.code, "message": each.sentence, "status": each.status, "version": each.version}
        for id, each in result.refused.items()
    ]
    data = {verb: len(result.done), **extra, "refused": refused, "ids": result.done}
    if result.unreached:
        data["unreached"] = result.unreached
    return Report(
        data=data,
        text=f"{counted(len(result.done))} {said(verb, options)}.",
        problems=[f"Task {id}: {refusal.sentence}." for id, refusal in result.refused.items()],
        failure=f"{counted(len(result.refused))} refused." if result.refused else "",
    )
