"""`prune_history`: delete old attempts, refused writes, throughput, command runs, lock history and stopped workers."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import OperatorCommand, Options, Report, audited, operator, types
from tasks.commands.output import counted, said


class Command(OperatorCommand):
    help = (
        "Delete history of some age: attempts of finished tasks, refused writes, throughput per minute, finished runs "
        "of commands, names of locks that nobody has held since, stopped workers that no row names any more, and the "
        "history of who blocked whom. The audit is never deleted."
    )
    examples = ("--older-than 30d", "--older-than 12w --dry-run")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--older-than", required=True, type=types.duration, metavar="D", help="Like 7d, 12h, 2w.")

    def run(self, options: Options) -> Report:
        with self.chunks(options) as progress:
            tables = operations.prune_history(options["older_than"], operator(), progress=progress, **audited(options))
        deleted = sum(tables.values())
        parts = ", ".join(f"{name} {number}" for name, number in tables.items())
        text = f"{counted(deleted, 'row')} {said('deleted', options)}: {parts}."
        return Report(data={"deleted": deleted, "tables": tables}, text=text)
