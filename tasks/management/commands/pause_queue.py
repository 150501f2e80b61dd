"""`pause_queue`: no worker claims from the queue."""

from django.core.management.base import CommandParser

from tasks import operations
from tasks.commands import OperatorCommand, Options, Report, audited, operator, types


class Command(OperatorCommand):
    help = "Pause a queue: no worker claims from it until `resume_queue`. Tasks that run already go on."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("name", type=types.name, metavar="NAME", help="The queue.")

    def run(self, options: Options) -> Report:
        name = options["name"]
        changed = operations.pause(name, operator(), **audited(options))
        text = f"Queue {name} is paused." if changed else f"Queue {name} was paused before; nothing changed."
        return Report(data={"queue": name, "paused": True, "changed": changed}, text=text)
