"""The shared part of commands on many tasks: filters, the verb, and the report of refusals."""

from typing import Any

from django.core.management.base import CommandParser

from tasks.commands import types
from tasks.commands.base import OperatorCommand, Options, Report, UsageError, operator
from tasks.commands.output import counted, said
from tasks.models import TaskStatus
from tasks.operations import Progress, Result, Settings, Spread, Verb
from tasks.operations.filters import TaskFilter
from tasks.operations.verb import AT_ONCE


class TaskCommand(OperatorCommand):
    """Performs `verb` on the tasks that ids and filters select.

    `participle` (requeued, edited) is also the key of the count. Without ids and --status, `default_statuses` hold.
    """

    verb: type[Verb]
    participle: str
    default_statuses: tuple[str, ...]

    def add_options(self, parser: CommandParser) -> None:
        add_filters(parser)
        self.add_settings(parser)

    def add_settings(self, parser: CommandParser) -> None:
        """Add the options of this verb."""

    def settings(self, options: Options) -> Settings:
        """The verb's settings. Raises UsageError if they do not go together."""
        return Settings(reason=options["reason"])

    def spread(self, chosen: TaskFilter, options: Options) -> Spread:
        return AT_ONCE

    def run(self, options: Options) -> Report:
        settings = self.settings(options)
        chosen = read_filter(options, self.default_statuses)
        with self.chunks(options) as progress:
            result = self.verb.act(
                chosen,
                operator(),
                settings,
                spread=self.spread(chosen, options),
                dry_run=options["dry_run"],
                progress=progress,
            )
            self.finish(result, options, progress)
        return self.report(result, options)

    def finish(self, result: Result, options: Options, progress: Progress) -> None:
        """Wait for the rest of the work, if the verb leaves any."""

    def report(self, result: Result, options: Options) -> Report:
        return report_of(result, self.participle, options)


def add_filters(parser: CommandParser) -> None:
    """Add ids and the conditions of a TaskFilter; several conditions must hold together."""
    parser.add_argument("ids", nargs="*", type=types.task_id, metavar="ID", help="Ids of tasks.")
    group = parser.add_argument_group("filters", "Tasks that match all of these; the first three may be repeated.")
    group.add_argument("--status", action="append", default=[], type=types.status, help="Their status.")
    group.add_argument("--queue", action="append", default=[], type=types.name, help="Their queue.")
    group.add_argument("--task", action="append", default=[], type=types.text, metavar="PATH", help="Their function.")
    group.add_argument("--text", default="", type=types.text, help="Text in their arguments.")
    group.add_argument("--ordering-key", type=types.name, metavar="K", help="Their ordering key.")
    group.add_argument("--worker", type=types.name, metavar="ID", help="Who holds or has completed them.")
    group.add_argument("--error", default="", type=types.text, help="Text in the error of their latest attempt.")
    group.add_argument("--older-than", type=types.duration, metavar="D", help="Created longer ago, like 90s or 7d.")


def read_filter(options: Options, default_statuses: tuple[str, ...]) -> TaskFilter:
    """The filter from the options; without ids and --status it selects only the default statuses.

    Raises UsageError without any condition, because no command may act on every task by mistake. Also for all COMPLETED
    tasks: each would be refused, and there may be ten million.
    """
    chosen = TaskFilter(
        ids=tuple(dict.fromkeys(options["ids"])),
        statuses=tuple(options["status"]),
        queue_names=tuple(options["queue"]),
        task_paths=tuple(options["task"]),
        error=options["error"],
        older_than=options["older_than"],
        text=options["text"],
        ordering_key=options["ordering_key"] or "",
        worker_id=options["worker"] or "",
    )
    if chosen.is_empty:
        raise UsageError(
            "Which tasks? Name ids (4711 4712) or at least one of --status, --queue, --task, --text, --ordering-key, "
            "--worker, --error and --older-than."
        )
    if not chosen.ids and TaskStatus.COMPLETED in chosen.statuses:
        raise UsageError("COMPLETED tasks stay as they are. To have their effect again, use `enqueue_task`.")
    if chosen.ids or chosen.statuses:
        return chosen
    return chosen.with_statuses(*default_statuses)


def report_of(result: Result, verb: str, options: Options, **extra: Any) -> Report:
    """The report of an action on tasks: `verb` (requeued, edited, cancelled) is also the key of its count."""
    data = {verb: len(result.done), **extra, "refused": refusals(result), "ids": result.done}
    if result.unreached:
        data["unreached"] = result.unreached
    return Report(
        data=data,
        text=f"{counted(len(result.done))} {said(verb, options)}.",
        problems=[f"Task {id}: {refusal.sentence}." for id, refusal in result.refused.items()],
        failure=f"{counted(len(result.refused))} refused." if result.refused else "",
    )


def refusals(result: Result) -> list[dict[str, Any]]:
    """The refused tasks for scripts: code, sentence, and the task's state."""
    return [
        {
            "id": id,
            "reason": refusal.code,
            "message": refusal.sentence,
            "status": refusal.status,
            "version": refusal.version,
        }
        for id, refusal in result.refused.items()
    ]
