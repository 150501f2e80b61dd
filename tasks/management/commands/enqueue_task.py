"""`enqueue_task`: one task, or many identical ones, from the command line."""

from django.core.management.base import CommandError, CommandParser

from tasks import operations
from tasks.commands import OperatorCommand, Options, Report, UsageError, audited, operator, types
from tasks.commands.output import counted, said
from tasks.compat import InvalidTask
from tasks.framework import declaration

USING = (
    "queue_name", "priority", "run_after", "ordering_key", "unique_key", "unique_while", "on_duplicate",
    "concurrency_key",
)  # fmt: skip


class Command(OperatorCommand):
    help = (
        "Enqueue a registered task, with its arguments as JSON. With --count, so many equal ones: all or none. With "
        "--archived, a new task with the call, queue and keys of an archived one, in place of PATH and other options."
    )
    examples = (
        "shop.tasks.send_mail --args '[4711]'",
        "shop.tasks.report --queue reports --run-after 2030-01-31T03:00:00+02:00",
    )

    def add_options(self, parser: CommandParser) -> None:
        when = "Not before this time, like 2030-01-31T03:00:00+02:00; without an offset in TIME_ZONE."
        path = "Its dotted path, like shop.tasks.send_mail."
        parser.add_argument("path", nargs="?", type=types.text, metavar="PATH", help=path)
        parser.add_argument("--archived", type=types.task_id, metavar="ID", help="Run this archived task again.")
        for option, field, kind, default, metavar, text in (
            ("--args", "task_args", types.json_array, [], "JSON", "Positional arguments: a JSON array."),
            ("--kwargs", "task_kwargs", types.json_object, {}, "JSON", "Keyword arguments: a JSON object."),
            ("--queue", "queue_name", types.destination, None, "Q", "Another queue than the task declares."),
            ("--priority", "priority", types.priority, None, "N", "-100 to 100; 100 runs first."),
            ("--run-after", "run_after", types.moment, None, "ISO", when),
            ("--ordering-key", "ordering_key", types.name, None, "K", "Tasks of one key run one by one."),
            (
                "--unique-key",
                "unique_key",
                types.name,
                None,
                "K",
                "At most one task has this key; a second is not made.",
            ),
            ("--concurrency-key", "concurrency_key", types.name, None, "K", "A limit of this key's tasks at once."),
            ("--count", "count", types.count, 1, "N", "How many (default 1)."),
        ):
            parser.add_argument(option, dest=field, type=kind, default=default, metavar=metavar, help=text)
        for option, choices, text in (
            ("--unique-while", declaration.UNIQUE_WHILE, "How long a task has its unique key."),
            ("--on-duplicate", declaration.ON_DUPLICATE, "Keep the task that has the key, or give it these arguments."),
        ):
            parser.add_argument(option, choices=choices, help=text)

    def run(self, options: Options) -> Report:
        if (options["path"] is None) == (options["archived"] is None):
            raise UsageError("Enqueue what? Give the PATH of a task, or --archived with the id of one.")
        if options["archived"] is not None:
            return again(options)
        chosen = {name: options[name] for name in (*USING, "count")} | audited(options)
        args, kwargs = options["task_args"], options["task_kwargs"]
        try:
            ids = operations.enqueue(options["path"], operator(), args=args, kwargs=kwargs, **chosen)
        except InvalidTask as error:
            raise CommandError(str(error)) from error
        shown = list(dict.fromkeys([ids[0], ids[-1]]))
        count = len(ids) - ids.duplicates
        text = f"{counted(count)} {said('enqueued', options)}"
        text += f": {' to '.join(map(str, shown))}." if count else "."
        if ids.duplicates:
            fate = "has these arguments now" if ids.replaced else "stays as it is"
            text += f" Task #{ids[-1]} has their unique key and {fate}."
        return Report(data={"ids": shown, "count": count, "duplicates": ids.duplicates}, text=text)


def again(options: Options) -> Report:
    """Run an archived task again."""
    new_id = operations.run_again(options["archived"], operator(), **audited(options))
    text = f"1 task {said('enqueued', options)}: {new_id}."
    return Report(data={"ids": [new_id], "count": 1, "duplicates": 0}, text=text)
