"""`configure_queue`: how a queue recovers the tasks of dead workers, how many of its tasks run, and its objective."""

from argparse import SUPPRESS

from django.core.management.base import CommandParser

from tasks.commands import OperatorCommand, Options, Report, audited, operator, types
from tasks.commands.base import UsageError
from tasks.management.commands.configure_limit import add_limits, limits_of, spoken
from tasks.models import Queue
from tasks.operations.queues import SWITCHES, set_objective, set_queue_limit
from tasks.operations.verb import short_waits
from tasks.support.durations import describe


class Command(OperatorCommand):
    help = (
        "Say what becomes of a queue's tasks when their worker dies: `automatic` takes them back by itself (the "
        "default), `ask` leaves them to a person, who takes them back on the page or by `recover_tasks`. And limit how "
        "many of its tasks run at once, and how many start in a period; `none` takes a limit away. An objective is how "
        "long a due task may wait: past it, a line needs attention."
    )
    examples = (
        "payouts --recovery ask",
        'mail --max-running 5 --rate 100/m --objective 5m --reason "their new quota"',
    )
    argument = ("name", types.name, "The queue.")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--recovery", choices=Queue.Recovery.values, help="Who takes tasks back.")
        add_limits(parser)
        parser.add_argument(
            "--objective",
            type=types.objective,
            default=SUPPRESS,
            metavar="D",
            help="How long a due task may wait, like 90s or 5m, or none.",
        )

    def run(self, options: Options) -> Report:
        name, recovery, asked = options["name"], options["recovery"], limits_of(options)
        objective = {"objective": options["objective"]} if "objective" in options else {}
        if not (recovery or asked or objective):
            raise UsageError("Nothing to change: give --recovery, --max-running, --rate or --objective.")
        who, kept = operator(), audited(options)
        with short_waits():  # all or nothing
            changes = [SWITCHES[recovery].change(name, who, **kept)] if recovery else []
            changes += [set_queue_limit(name, who, **asked, **kept)] if asked else []
            changes += [set_objective(name, who, **objective, **kept)] if objective else []
        said = [f"Recovery of queue {name} is {recovery}"] if recovery else []
        said += [f"Limit of queue {name}: {spoken(asked)}"] if asked else []
        told = {key: describe(value) if value else None for key, value in objective.items()}
        said += [f"Objective of queue {name}: {told['objective'] or 'none'}"] if told else []
        lines = [
            f"{text}." if changed else f"{text} as before; nothing changed."
            for text, changed in zip(said, changes, strict=True)
        ]
        data = {"queue": name, **({"recovery": recovery} if recovery else {}), **asked, **told}
        return Report(data={**data, "changed": any(changes)}, text="\n".join(lines))
