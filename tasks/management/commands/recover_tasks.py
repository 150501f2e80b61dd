"""`recover_tasks`: take back the tasks of dead workers."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import OperatorCommand, Options, Report, audited, operator, types
from tasks.commands.output import counted, said
from tasks.queue.presence import WorkerState


class Command(OperatorCommand):
    help = (
        "Take back the PROCESSING tasks of dead workers: READY again, or FAILED when no attempt is left. Workers do "
        "this by themselves; this command also does it for queues whose recovery is `ask`. It checks twice, 0.3 s "
        "apart, when a worker has just died."
    )
    examples = ("--dry-run", '--limit 100 --reason "host db3 is gone"')

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--limit", type=types.count, help="Take back at most so many tasks.")

    def run(self, options: Options) -> Report:
        sweep = operations.recover(operator(), limit=options["limit"], **audited(options))
        waiting = [(state, seconds_left(state)) for state in sweep.waiting]
        refused = sorted(sweep.refused.items())
        data = {
            "requeued": len(sweep.requeued),
            "failed": len(sweep.failed),
            "cancelled": len(sweep.cancelled),
            "ids": sorted(row["id"] for row in sweep.rows),
            "dead_workers": sorted(sweep.dead),
            "waiting": [{"worker": state.id, "life": state.life, "seconds": left} for state, left in waiting],
            "refused": [{"id": task_id, "error": error} for task_id, error in refused],
        }
        text = (
            f"{counted(len(sweep.rows))} of {counted(len(sweep.dead), 'dead worker')} {said('taken back', options)}: "
            f"{data['requeued']} READY, {data['failed']} FAILED, {data['cancelled']} CANCELLED."
        )
        problems = [
            f"Worker {state.id} is silent, but the database restarted a moment ago: it has {left} s left to come "
            "back before its tasks are taken. Run this again then."
            for state, left in waiting
        ]
        problems += [f"Task {task_id}: the database refused: {error}" for task_id, error in refused]
        failure = f"{counted(len(refused), 'task')} could not be taken back." if refused else ""
        return Report(data=data, text=text, problems=problems, failure=failure)


def seconds_left(state: WorkerState) -> float:
    """Seconds that the worker has left to come back."""
    return round(max(0.0, state.grace_seconds, state.lease_seconds - (state.heartbeat_age_seconds or 0)), 1)
