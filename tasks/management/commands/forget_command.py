"""`forget_command`: expect no more runs of a command."""

from django.core.management.base import CommandParser

from tasks.commands import OperatorCommand, Options, Report, audited, operator, types
from tasks.operations.locks import forget_command


class Command(OperatorCommand):
    help = "End the expectation that `run_locked NAME --expect-every` left: a command that is retired is not overdue."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("name", type=types.name, metavar="NAME", help="The name that was given to `run_locked`.")

    def run(self, options: Options) -> Report:
        name = options["name"]
        forgotten = forget_command(name, operator(), **audited(options))
        text = f"{name} is expected no more." if forgotten else f"{name} was not expected; nothing changed."
        return Report(data={"command": name, "forgotten": forgotten}, text=text)
