"""`queue_status`: the numbers of every queue and worker, checked against limits."""

from typing import Any

from django.core.management.base import CommandParser

from tasks.commands import OperatorCommand, Options, Report, types
from tasks.commands.base import UNHEALTHY
from tasks.commands.output import table
from tasks.diagnosis import stats
from tasks.diagnosis.stats import Numbers, QueueNumbers
from tasks.operations import short_waits
from tasks.queue.presence import WorkerState
from tasks.schedule import expectations
from tasks.support.durations import spoken

QUEUE_HEADINGS = ("QUEUE", "READY", "OLDEST", "SCHEDULED", "PROCESSING", "STALE", "FAILED", "COMPLETED/H", "STATE")
WORKER_HEADINGS = ("WORKER", "HOST", "PID", "LIFE", "HEARTBEAT", "TASK")


class Command(OperatorCommand):
    help = (
        "Show every queue and worker. Exit status 3 when a limit is passed, for cron and monitoring. "
        "`stale` are PROCESSING tasks whose worker does not answer."
    )
    changes_data = False

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--max-stale", type=types.limit, metavar="N", help="Stale tasks allowed in all queues.")
        parser.add_argument(
            "--max-ready-age", type=types.seconds, metavar="SECONDS", help="How long a due task may wait, in any queue."
        )

    def run(self, options: Options) -> Report:
        with short_waits():
            numbers = stats.collect()
        late = expectations.overdue()
        problems = [
            f"Command {command.name} is overdue: a run was due {spoken(command.overdue_seconds)} ago, and none has "
            "succeeded since. Does cron still start it, does it fail, or does somebody hold its lock? The page of cron "
            f"and named locks shows it; `forget_command {command.name}` ends the expectation."
            for command in late
        ]
        problems += stale_problems(numbers, options["max_stale"]) + age_problems(numbers, options["max_ready_age"])
        queues, workers = map(queue_data, numbers.queues), map(worker_data, numbers.workers)
        return Report(
            data={"overdue": [command.name for command in late], "queues": list(queues), "workers": list(workers)},
            text=f"{queue_table(numbers)}\n\n{worker_table(numbers)}",
            problems=problems,
            failure="Unhealthy: a limit is passed, or a command is overdue." if problems else "",
            exit_status=UNHEALTHY,
        )


def stale_problems(numbers: Numbers, most: int | None) -> list[str]:
    stale = {queue.name: queue.stale for queue in numbers.queues if queue.stale}
    if most is None or sum(stale.values()) <= most:
        return []
    where = ", ".join(f"{number} in {name}" for name, number in stale.items())
    return [f"Stale tasks: {where}; allowed are {most}. Start a worker, or run `recover_tasks`."]


def age_problems(numbers: Numbers, most: float | None) -> list[str]:
    return [
        f"Queue {queue.name}: a due task waits for {queue.oldest_ready_seconds:.0f} s, allowed are {most:g}. "
        + ("The queue is paused: `resume_queue` it." if queue.paused else "Are enough workers running?")
        for queue in numbers.queues
        if most is not None and (queue.oldest_ready_seconds or 0) > most
    ]


def queue_data(queue: QueueNumbers) -> dict[str, Any]:
    since = queue.stale_since.isoformat() if queue.stale_since else None
    return {**vars(queue), "oldest_ready_seconds": rounded(queue.oldest_ready_seconds), "stale_since": since}


def worker_data(worker: WorkerState) -> dict[str, Any]:
    same = {name: getattr(worker, name) for name in ("id", "hostname", "pid", "life", "queues", "current_task_id")}
    return {**same, "alive": worker.is_alive, "heartbeat_age_seconds": rounded(worker.heartbeat_age_seconds)}


def queue_table(numbers: Numbers) -> str:
    counts = ("scheduled", "processing", "stale", "failed", "completed_last_hour")
    rows = [
        (
            queue.name,
            queue.ready,
            age(queue.oldest_ready_seconds),
            *(getattr(queue, name) for name in counts),
            "paused" if queue.paused else queue.recovery,
        )
        for queue in numbers.queues
    ]
    return table(QUEUE_HEADINGS, rows) if rows else "No queue has a task yet."


def worker_table(numbers: Numbers) -> str:
    rows = [
        (state.id, state.hostname, state.pid, state.life, age(state.heartbeat_age_seconds), state.current_task_id)
        for state in numbers.workers
    ]
    return table(WORKER_HEADINGS, rows) if rows else "No worker is running: start one with `manage.py run_worker`."


def rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def age(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.0f} s"
