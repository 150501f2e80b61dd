"""`show_task`: one task with its verdict, its progress, its attempts and its log."""

import json
import time
from datetime import datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from tasks.commands import OperatorCommand, Options, Report, types
from tasks.commands.output import Part, Table, printable, write_line
from tasks.commands.selection import row_of
from tasks.diagnosis import decide, gather
from tasks.diagnosis.progress import Reported, checkpoint_of, latest_lines, progress_of
from tasks.framework.context import MOST_LINES
from tasks.framework.redacted_calls import redact_call
from tasks.models import FINISHED, Attempt, AttemptLog, Progress, Task, TaskStatus, find_task
from tasks.operations.archived import judge
from tasks.support import tracing
from tasks.support.durations import spoken
from tasks.support.reading import one_line
from tasks.support.redaction import redact

HEADINGS = ("NO.", "OUTCOME", "ENDED", "RAN", "WORKER", "EXCEPTION")
MOST_ATTEMPTS = 50
POLL_SECONDS = 0.5


class Command(OperatorCommand):
    help = (
        "Show one task: the verdict on it, the command that would help, its row, progress, attempts, latest traceback "
        "and log. With --follow, print each change of its state, its progress and its log until it is finished."
    )
    examples = ("4711", "4711 --follow")
    changes_data = False
    argument = ("id", types.task_id, "The task's id.")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--follow", action="store_true", help="Wait until it is finished.")

    def run(self, options: Options) -> Report:
        shown, seen, last = Shown(options["id"]), None, 0
        while options["follow"] and shown.task.status not in FINISHED:
            fresh = [line for line in shown.log if line.pk > last]
            if not self.tell(shown, seen, fresh, options):
                break
            seen, last = shown, max([last, *(line.pk for line in fresh)])
            time.sleep(POLL_SECONDS)
            shown = Shown(options["id"], last)
        if options["json"]:
            shown.log = shown.lines()
        return Report(data=as_data(shown), text=as_text(shown))

    def tell(self, shown: "Shown", seen: "Shown | None", fresh: list[AttemptLog], options: Options) -> bool:
        """Print what is new since `seen`, each on its line; False when the reader has left."""
        if options["json"] or options["verbosity"] < 1:
            return True
        said = [log_line(line) for line in fresh]
        at = timezone.localtime().strftime("%H:%M:%S")
        task, told = shown.task, shown.told
        if seen is None or seen.state != shown.state:
            said.append(one_line(f"{at}  {task.status} v{task.version}  {shown.finding.sentence}"))
        if told and (seen is None or seen.told != told):
            said.append(f"{at}  {told}")
        return all(write_line(self.stdout, text) for text in said)


class Shown:
    """A task as it is now, the verdict on it, and its lines behind the line `after`."""

    def __init__(self, task_id: int, after: int = 0) -> None:
        task, self.archived = find_task(task_id)
        if task is None:
            raise CommandError(f"Task {task_id} does not exist: it was pruned, or the id is wrong.")
        self.task = task
        if self.archived:
            self.attempts = self.archived.attempts(MOST_ATTEMPTS)
            facts, self.finding = judge(task, self.attempts)
        else:
            self.attempts = list(Attempt.objects.filter(task=task).order_by("-id")[:MOST_ATTEMPTS])
            facts = gather([task])
            self.finding = decide(task, facts)
        self.state = (task.version, self.finding.verdict)
        self.progress: Progress | None = progress_of(task)
        self.told = told_of(task, self.progress, facts.now)
        self.log: list[AttemptLog] = self.lines(after)

    def lines(self, after: int = 0) -> list[AttemptLog]:
        """The latest lines behind the line `after`."""
        return self.archived.lines(MOST_LINES) if self.archived else latest_lines(self.task.pk, after)


def told_of(task: Task, progress: Progress | None, now: datetime) -> str:
    """How far the task is, in a line; the rate and the estimated end only while it runs."""
    reported = Reported.of(progress, now) if progress else None
    if reported is None:
        return ""
    words = reported.words if task.status == TaskStatus.PROCESSING else f"{reported.percent} %"
    return one_line(": ".join(filter(None, (words, reported.message))))


def log_line(line: AttemptLog) -> str:
    """One line of the log for a terminal; further lines of its message are indented."""
    at = timezone.localtime(line.at).strftime("%H:%M:%S")
    text = printable(line.message).replace("\n", "\n    ")
    return f"{at}  {one_line(line.level):8} {text}"


def as_data(shown: Shown) -> dict[str, Any]:
    task, finding = shown.task, shown.finding
    args, kwargs = redact_call(task.task_path, task.args, task.kwargs)
    return {
        "tasks": [row_of(task, finding)],
        "archived_at": shown.archived.archived_at.isoformat() if shown.archived else None,
        "sentence": finding.sentence,
        "also": [other.sentence for other in finding.also],
        "command": finding.command or None,
        "trace_id": tracing.trace_id_of(task.traceparent) or None,
        "trace_url": tracing.trace_url(task.traceparent) or None,
        "args": args,
        "kwargs": kwargs,
        "attempts": [attempt_data(attempt) for attempt in shown.attempts],
        "progress": progress_data(shown.progress),
        "log": [
            {"number": line.number, "at": line.at.isoformat(), "level": line.level, "message": line.message}
            for line in shown.log
        ],
    }


def progress_data(progress: Progress | None) -> dict[str, Any] | None:
    if progress is None:
        return None
    told = {"fraction": progress.fraction, "message": progress.message}
    return told | {"updated_at": progress.updated_at.isoformat(), "state": redact(progress.state)}


def attempt_data(attempt: Attempt) -> dict[str, Any]:
    names = ("number", "worker_id", "outcome", "exception_class", "traceback")
    moments = {"started_at": attempt.started_at, "finished_at": attempt.finished_at}
    times = {name: moment.isoformat() if moment else None for name, moment in moments.items()}
    return {name: getattr(attempt, name) for name in names} | times


def as_text(shown: Shown) -> list[Part]:
    task, finding, attempts = shown.task, shown.finding, shown.attempts
    args, kwargs = redact_call(task.task_path, task.args, task.kwargs)
    state = checkpoint_of(task, shown.progress)
    facts = {
        "status": f"{task.status}, v{task.version}, attempt {task.attempt} of {task.max_attempts}",
        "task": task.task_path,
        "queue": f"{task.queue_name}, priority {task.priority}",
        "key": task.ordering_key,
        "unique": f"{task.unique_key} ({task.get_unique_while_display()})" if task.unique_key else None,
        "args": json.dumps(args, ensure_ascii=False) if args else None,
        "kwargs": json.dumps(kwargs, ensure_ascii=False) if kwargs else None,
        "returned": None if task.return_value is None else json.dumps(redact(task.return_value), ensure_ascii=False),
        "progress": shown.told,
        "resumes": None if state is None else f"from the checkpoint {json.dumps(state, ensure_ascii=False)}",
        "trace": tracing.trace_url(task.traceparent) or tracing.trace_id_of(task.traceparent),
        "worker": task.claimed_by or task.finished_by,
        "enqueued": local(task.created_at),
        "due": local(task.run_after),
        "started": local(task.started_at),
        "finished": local(task.finished_at),
        "archived": local(shown.archived.archived_at) if shown.archived else None,
    }
    advice = [f"$ {finding.command}"] if finding.command else []
    said = [f"#{task.pk}: {finding.sentence}", *(other.sentence for other in finding.also), *advice]
    parts: list[Part] = ["\n".join(map(one_line, said))]
    parts.append("\n".join(f"{name:9} {one_line(text)}" for name, text in facts.items() if text))
    if attempts:
        parts.append(Table(HEADINGS, [attempt_row(attempt) for attempt in attempts]))
        if attempts[0].traceback:
            parts.append(attempts[0].traceback.rstrip("\n"))
    if shown.log:
        parts.append("\n".join(map(log_line, shown.log)))
    return parts


def attempt_row(attempt: Attempt) -> tuple[Any, ...]:
    ran = None
    if attempt.started_at and attempt.finished_at:
        ran = spoken((attempt.finished_at - attempt.started_at).total_seconds())
    ended, exception = local(attempt.finished_at), attempt.exception_class or None
    return attempt.number, attempt.outcome, ended, ran, attempt.worker_id, exception


def local(moment: Any) -> str | None:
    return timezone.localtime(moment).isoformat(sep=" ", timespec="milliseconds") if moment else None
