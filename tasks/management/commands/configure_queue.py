"""`configure_queue`: choose how a queue recovers the tasks of dead workers."""

from django.core.management.base import CommandParser

from tasks.commands import OperatorCommand, Options, Report, audited, operator, types
from tasks.models import Queue
from tasks.operations.queues import SWITCHES


class Command(OperatorCommand):
    help = (
        "Say what becomes of a queue's tasks when their worker dies: `automatic` takes them back by itself (the "
        "default), `ask` leaves them to a person, who takes them back on the page or by `recover_tasks`."
    )
    examples = ("payouts --recovery ask", 'payouts --recovery automatic --reason "safe to repeat"')
    argument = ("name", types.name, "The queue.")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--recovery", required=True, choices=Queue.Recovery.values, help="Who takes tasks back.")

    def run(self, options: Options) -> Report:
        name, recovery = options["name"], options["recovery"]
        changed = SWITCHES[recovery].change(name, operator(), **audited(options))
        text = f"Recovery of queue {name} is {recovery}" + ("." if changed else " as before; nothing changed.")
        return Report(data={"queue": name, "recovery": recovery, "changed": changed}, text=text)
