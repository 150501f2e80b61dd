"""`enqueue_task`: one task, or many identical ones, from the command line."""

from django.core.management.base import CommandError, CommandParser

from tasks import operations
from tasks.commands import OperatorCommand, Options, Report, audited, operator, types
from tasks.commands.output import counted, said
from tasks.compat import InvalidTask


class Command(OperatorCommand):
    help = "Enqueue a registered task, with its arguments as JSON. With --count, so many equal ones: all or none."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("path", type=types.text, metavar="PATH", help="Its dotted path, like shop.tasks.send_mail.")
        parser.add_argument("--args", type=types.json_array, default=[], metavar="JSON", dest="task_args",
                            help="Positional arguments: a JSON array.")  # fmt: skip
        parser.add_argument("--kwargs", type=types.json_object, default={}, metavar="JSON", dest="task_kwargs",
                            help="Keyword arguments: a JSON object.")  # fmt: skip
        parser.add_argument(
            "--queue", type=types.destination, metavar="Q", help="Another queue than the task declares."
        )
        parser.add_argument("--priority", type=types.priority, metavar="N", help="-100 to 100; 100 runs first.")
        parser.add_argument("--run-after", type=types.moment, metavar="ISO",
                            help="Not before this time, like 2030-01-31T03:00:00+02:00; without an offset in the "
                            "project's TIME_ZONE.")  # fmt: skip
        parser.add_argument("--ordering-key", type=types.name, metavar="K", help="Tasks of one key run one by one.")
        parser.add_argument("--count", type=types.count, default=1, metavar="N", help="How many (default 1).")

    def run(self, options: Options) -> Report:
        try:
            ids = operations.enqueue(
                options["path"],
                operator(),
                args=options["task_args"],
                kwargs=options["task_kwargs"],
                queue_name=options["queue"],
                priority=options["priority"],
                run_after=options["run_after"],
                ordering_key=options["ordering_key"],
                count=options["count"],
                **audited(options),
            )
        except InvalidTask as error:
            raise CommandError(str(error)) from error
        shown = ids if len(ids) <= 2 else [ids[0], ids[-1]]
        text = f"{counted(len(ids))} {said('enqueued', options)}: {' to '.join(map(str, shown))}."
        return Report(data={"ids": shown, "count": len(ids)}, text=text)
