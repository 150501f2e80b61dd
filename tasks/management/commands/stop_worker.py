"""`stop_worker`: ask one worker to finish and stop."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import OperatorCommand, Options, Report, audited, operator, types


class Command(OperatorCommand):
    help = (
        "Ask a worker to claim nothing more, finish what it runs and stop. `queue_status` lists the ids. The command "
        "does not wait for the end."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("id", type=types.name, metavar="ID", help="The worker's id.")

    def run(self, options: Options) -> Report:
        worker_id = options["id"]
        requested = operations.stop_worker(worker_id, operator(), **audited(options))
        text = (
            f"Worker {worker_id} is asked to finish and stop."
            if requested
            else f"Worker {worker_id} has stopped or was asked before; nothing changed."
        )
        return Report(data={"worker": worker_id, "requested": requested}, text=text)
