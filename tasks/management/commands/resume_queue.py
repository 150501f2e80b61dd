"""`resume_queue`: workers claim from a paused queue again."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import OperatorCommand, Options, Report, audited, operator, types


class Command(OperatorCommand):
    help = "Resume a paused queue: workers claim from it again, at once."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("name", type=types.name, metavar="NAME", help="The queue.")

    def run(self, options: Options) -> Report:
        name = options["name"]
        changed = operations.resume(name, operator(), **audited(options))
        text = f"Queue {name} is resumed." if changed else f"Queue {name} was not paused; nothing changed."
        return Report(data={"queue": name, "paused": False, "changed": changed}, text=text)
