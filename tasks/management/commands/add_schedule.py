"""`add_schedule`: run a registered task again and again."""

from django.core.management.base import CommandParser

from tasks.commands import OperatorCommand, Options, Report, UsageError, audited, operator, types
from tasks.commands.output import said
from tasks.commands.schedules import ARGUMENT, add_settings, as_json, as_lines, settings_of
from tasks.operations import schedules


class Command(OperatorCommand):
    help = "Add a schedule of a registered task, by a cron expression or an interval; shows its next times."
    examples = (
        "nightly-report shop.tasks.report --cron '30 3 * * *' --timezone Europe/Berlin",
        "sync-stock shop.tasks.sync --every 10m --args '[4711]' --overlap queue",
    )
    argument = ARGUMENT

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("path", type=types.text, metavar="PATH", help="Its dotted path, like shop.tasks.report.")
        parser.add_argument("--paused", action="store_true", help="Add it, but let it wait for `resume_schedule`.")
        add_settings(parser)

    def run(self, options: Options) -> Report:
        settings = settings_of(options)
        if settings.keys().isdisjoint(("cron", "every")):
            raise UsageError("Say when: give --cron or --every.")
        settings["paused"] = options["paused"]
        row = schedules.add(options["name"], options["path"], operator(), settings, **audited(options))
        text = f"Schedule {row.name} {said('added', options)}: {row.recurrence.describe()}."
        forecast = schedules.forecast(row.recurrence, row.ends_at)
        return Report(data={"schedule": as_json(row, schedules.now())}, text=[text, as_lines(forecast)])
