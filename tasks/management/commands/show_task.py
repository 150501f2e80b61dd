"""`show_task`: one task with its verdict and its attempts."""

import json
import time
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from tasks.commands import OperatorCommand, Options, Report, types
from tasks.commands.output import Part, Table, write_line
from tasks.commands.selection import row_of
from tasks.diagnosis import Finding, decide, gather
from tasks.models import FINISHED, Attempt, Task
from tasks.support.durations import spoken
from tasks.support.reading import one_line
from tasks.support.redaction import redact, redact_call

HEADINGS = ("NO.", "OUTCOME", "ENDED", "RAN", "WORKER", "EXCEPTION")
MOST_ATTEMPTS = 50
POLL_SECONDS = 0.5


class Command(OperatorCommand):
    help = (
        "Show one task: the verdict on it, the command that would help, its row, attempts and latest traceback. With "
        " --follow, print each change of its state until it is finished."
    )
    examples = ("4711", "4711 --follow")
    changes_data = False
    argument = ("id", types.task_id, "The task's id.")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--follow", action="store_true", help="Wait until it is finished.")

    def run(self, options: Options) -> Report:
        task, finding = judged(options["id"])
        seen = None
        while options["follow"] and task.status not in FINISHED:
            state = (task.version, finding.verdict)
            if state != seen and not self.tell(task, finding, options):
                break
            seen = state
            time.sleep(POLL_SECONDS)
            task, finding = judged(options["id"])
        attempts = list(Attempt.objects.filter(task=task).order_by("-id")[:MOST_ATTEMPTS])
        return Report(data=as_data(task, finding, attempts), text=as_text(task, finding, attempts))

    def tell(self, task: Task, finding: Finding, options: Options) -> bool:
        """Print the state in one line; False when the reader has left."""
        if options["json"] or options["verbosity"] < 1:
            return True
        at = timezone.localtime().strftime("%H:%M:%S")
        return write_line(self.stdout, one_line(f"{at}  {task.status} v{task.version}  {finding.sentence}"))


def judged(task_id: int) -> tuple[Task, Finding]:
    """The task as it is now, and the verdict on it."""
    task = Task.objects.filter(pk=task_id).first()
    if task is None:
        raise CommandError(f"Task {task_id} does not exist: it was pruned, or the id is wrong.")
    return task, decide(task, gather([task]))


def as_data(task: Task, finding: Finding, attempts: list[Attempt]) -> dict[str, Any]:
    args, kwargs = redact_call(task.task_path, task.args, task.kwargs)
    return {
        "tasks": [row_of(task, finding)],
        "sentence": finding.sentence,
        "also": [other.sentence for other in finding.also],
        "command": finding.command or None,
        "args": args,
        "kwargs": kwargs,
        "attempts": [attempt_data(attempt) for attempt in attempts],
    }


def attempt_data(attempt: Attempt) -> dict[str, Any]:
    names = ("number", "worker_id", "outcome", "exception_class", "traceback")
    moments = {"started_at": attempt.started_at, "finished_at": attempt.finished_at}
    times = {name: moment.isoformat() if moment else None for name, moment in moments.items()}
    return {name: getattr(attempt, name) for name in names} | times


def as_text(task: Task, finding: Finding, attempts: list[Attempt]) -> list[Part]:
    args, kwargs = redact_call(task.task_path, task.args, task.kwargs)
    facts = {
        "status": f"{task.status}, v{task.version}, attempt {task.attempt} of {task.max_attempts}",
        "task": task.task_path,
        "queue": f"{task.queue_name}, priority {task.priority}",
        "key": task.ordering_key,
        "args": json.dumps(args, ensure_ascii=False) if args else None,
        "kwargs": json.dumps(kwargs, ensure_ascii=False) if kwargs else None,
        "returned": None if task.return_value is None else json.dumps(redact(task.return_value), ensure_ascii=False),
        "worker": task.claimed_by or task.finished_by,
        "enqueued": local(task.created_at),
        "due": local(task.run_after),
        "started": local(task.started_at),
        "finished": local(task.finished_at),
    }
    advice = [f"$ {finding.command}"] if finding.command else []
    said = [f"#{task.pk}: {finding.sentence}", *(other.sentence for other in finding.also), *advice]
    parts: list[Part] = ["\n".join(map(one_line, said))]
    parts.append("\n".join(f"{name:9} {one_line(text)}" for name, text in facts.items() if text))
    if attempts:
        parts.append(Table(HEADINGS, [attempt_row(attempt) for attempt in attempts]))
        if attempts[0].traceback:
            parts.append(attempts[0].traceback.rstrip("\n"))
    return parts


def attempt_row(attempt: Attempt) -> tuple[Any, ...]:
    ran = None
    if attempt.started_at and attempt.finished_at:
        ran = spoken((attempt.finished_at - attempt.started_at).total_seconds())
    ended, exception = local(attempt.finished_at), attempt.exception_class or None
    return attempt.number, attempt.outcome, ended, ran, attempt.worker_id, exception


def local(moment: Any) -> str | None:
    return timezone.localtime(moment).isoformat(sep=" ", timespec="milliseconds") if moment else None
