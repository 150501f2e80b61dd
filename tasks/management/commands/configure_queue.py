"""`configure_queue`: choose how a queue recovers the tasks of dead workers, and how many of its tasks run."""

from django.core.management.base import CommandParser

from tasks.commands import OperatorCommand, Options, Report, audited, operator, types
from tasks.commands.base import UsageError
from tasks.management.commands.configure_limit import add_limits, limits_of, spoken
from tasks.models import Queue
from tasks.operations.limits import set_queue_limit
from tasks.operations.queues import SWITCHES
from tasks.operations.verb import short_waits


class Command(OperatorCommand):
    help = (
        "Say what becomes of a queue's tasks when their worker dies: `automatic` takes them back by itself (the "
        "default), `ask` leaves them to a person, who takes them back on the page or by `recover_tasks`. And limit how "
        "many of its tasks run at once, and how many start in a period; `none` takes a limit away."
    )
    examples = ("payouts --recovery ask", 'mail --max-running 5 --rate 100/m --reason "their new quota"')
    argument = ("name", types.name, "The queue.")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--recovery", choices=Queue.Recovery.values, help="Who takes tasks back.")
        add_limits(parser)

    def run(self, options: Options) -> Report:
        name, recovery, asked = options["name"], options["recovery"], limits_of(options)
        if not (recovery or asked):
            raise UsageError("Nothing to change: give --recovery, --max-running or --rate.")
        who, kept = operator(), audited(options)
        with short_waits():  # both or neither
            changes = [SWITCHES[recovery].change(name, who, **kept)] if recovery else []
            changes += [set_queue_limit(name, who, **asked, **kept)] if asked else []
        said = [f"Recovery of queue {name} is {recovery}"] if recovery else []
        said += [f"Limit of queue {name}: {spoken(asked)}"] if asked else []
        lines = [
            f"{text}." if changed else f"{text} as before; nothing changed."
            for text, changed in zip(said, changes, strict=True)
        ]
        data = {"queue": name, **({"recovery": recovery} if recovery else {}), **asked}
        return Report(data={**data, "changed": any(changes)}, text="\n".join(lines))
