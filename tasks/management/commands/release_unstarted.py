"""`release_unstarted`: release tasks that a worker claimed but did not start, while it hangs on another."""

from tasks import operations
from tasks.commands import OperatorCommand, Options, Report, audited, operator, types
from tasks.commands.selection import report_of


class Command(OperatorCommand):
    help = (
        "Give back the tasks that a worker has claimed and not begun, while it hangs on one. Their attempts are not "
        "spent. Should the worker go on, what it reports of them is refused. `queue_status` lists the ids of workers."
    )
    examples = ("3f2a9c0b1d4e5f60", "3f2a9c0b1d4e5f60 --dry-run")
    argument = ("id", types.name, "The worker's id.")

    def run(self, options: Options) -> Report:
        result = operations.release_unstarted(options["id"], operator(), **audited(options))
        return report_of(result, "released", options, worker=options["id"])
