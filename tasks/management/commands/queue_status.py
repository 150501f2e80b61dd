"""`queue_status`: the numbers of every queue and worker, checked against limits."""

from typing import Any

from django.core.management.base import CommandError, CommandParser

from tasks import panels
from tasks.commands import OperatorCommand, Options, Report, types
from tasks.commands.base import UNHEALTHY
from tasks.commands.output import Part, Table
from tasks.diagnosis import stats
from tasks.diagnosis.stats import Numbers, QueueNumbers
from tasks.operations import short_waits
from tasks.queue.presence import WorkerState
from tasks.schedule import expectations
from tasks.schedule.expectations import Expectation
from tasks.support.durations import spoken

QUEUE_HEADINGS = ("QUEUE", "READY", "OLDEST", "SCHEDULED", "RUNNING", "STALE", "FAILED", "DONE/H", "STATE")
WORKER_HEADINGS = ("WORKER", "HOST", "PID", "LIFE", "HEARTBEAT", "TASK")


class Command(OperatorCommand):
    help = (
        "Show every queue and worker. Exit status 3 when a limit is passed, for cron and monitoring. "
        "`stale` are PROCESSING tasks whose worker is dead or silent."
    )
    examples = ("--max-stale 0 --max-ready-age 300", "--watch 5")
    changes_data = False
    is_watchable = True

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--max-stale", type=types.limit, metavar="N", help="Stale tasks allowed in all queues.")
        parser.add_argument(
            "--max-ready-age", type=types.seconds, metavar="SECONDS", help="How long a due task may wait, in any queue."
        )
        parser.add_argument("--alert", action="store_true", help="Also send new alerts, for cron.")

    def run(self, options: Options) -> Report:
        sentences = send_alerts() if options["alert"] else []
        with short_waits():
            numbers = stats.collect()
        late = expectations.overdue()
        found = problems(numbers, late, options["max_stale"], options["max_ready_age"])
        return Report(
            data={
                "overdue": [command.name for command in late],
                "queues": [queue_data(queue) for queue in numbers.queues],
                "workers": [worker_data(worker) for worker in numbers.workers],
            },
            text=[*tables(numbers), *sentences],
            problems=found,
            failure="Unhealthy: a limit or an objective is passed, or a command is overdue." if found else "",
            exit_status=UNHEALTHY,
        )


def send_alerts() -> list[str]:
    """Send what is new; a sentence for each app that does so. Raises CommandError if none does."""
    panels.load()
    if not panels.ALERTERS:
        raise CommandError("No installed app sends alerts.")
    return [send() for send in panels.ALERTERS]


def problems(
    numbers: Numbers, late: list[Expectation], max_stale: int | None, max_ready_age: float | None
) -> list[str]:
    """A sentence for each overdue command, and each limit and objective that is passed."""
    found = [
        f"Command {command.name} is overdue: a run was due {spoken(command.overdue_seconds)} ago, and none has "
        "succeeded since. Does cron still start it, does it fail, or does somebody hold its lock? The page of cron and "
        f"named locks shows it; `forget_command {command.name}` ends the expectation."
        for command in late
    ]
    stale = {queue.name: queue.stale for queue in numbers.queues if queue.stale}
    if max_stale is not None and sum(stale.values()) > max_stale:
        where = ", ".join(f"{number} in {name}" for name, number in stale.items())
        found.append(f"Stale tasks: {where}; allowed are {max_stale}. Start a worker, or run `recover_tasks`.")
    for queue in numbers.queues:
        advice = "The queue is paused: `resume_queue` it." if queue.paused else "Are enough workers running?"
        if queue.is_past_objective:
            waits = f"a due task waits for {queue.oldest_ready_seconds:.0f} s, its objective is"
            found.append(f"Queue {queue.name}: {waits} {queue.objective_seconds:g} s. {advice}")
        if max_ready_age is not None and (queue.oldest_ready_seconds or 0) > max_ready_age:
            waits = f"a due task waits for {queue.oldest_ready_seconds:.0f} s, allowed are {max_ready_age:g}"
            found.append(f"Queue {queue.name}: {waits}. {advice}")
    return found


def queue_data(queue: QueueNumbers) -> dict[str, Any]:
    since = queue.stale_since.isoformat() if queue.stale_since else None
    return {**vars(queue), "oldest_ready_seconds": rounded(queue.oldest_ready_seconds), "stale_since": since}


def worker_data(worker: WorkerState) -> dict[str, Any]:
    same = {name: getattr(worker, name) for name in ("id", "hostname", "pid", "life", "queues", "current_task_id")}
    return {**same, "alive": worker.is_alive, "heartbeat_age_seconds": rounded(worker.heartbeat_age_seconds)}


def tables(numbers: Numbers) -> list[Part]:
    """The queues and the workers."""
    counts = ("scheduled", "processing", "stale", "failed", "completed_last_hour")
    queues = [
        (
            queue.name,
            queue.ready,
            age(queue.oldest_ready_seconds),
            *(getattr(queue, name) for name in counts),
            "paused" if queue.paused else queue.recovery,
        )
        for queue in numbers.queues
    ]
    workers = [
        (state.id, state.hostname, state.pid, state.life, age(state.heartbeat_age_seconds), state.current_task_id)
        for state in numbers.workers
    ]
    first = Table(QUEUE_HEADINGS, queues, alarming=("STALE", "FAILED")) if queues else "No queue has a task yet."
    none = "No worker is running: start one with `manage.py run_worker`."
    return [first, Table(WORKER_HEADINGS, workers) if workers else none]


def rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def age(seconds: float | None) -> str | None:
    return None if seconds is None else spoken(seconds)
