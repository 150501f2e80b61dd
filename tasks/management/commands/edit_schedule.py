"""`edit_schedule`: change settings of a schedule, or go back to those that code declares."""

from django.core.management.base import CommandParser

from tasks.commands import OperatorCommand, Options, Report, UsageError, audited, operator
from tasks.commands.schedules import ARGUMENT, add_settings, as_json, as_lines, settings_of
from tasks.operations import schedules


class Command(OperatorCommand):
    help = (
        "Change the settings of a schedule that are named, and show its next times. What code declares and somebody "
        "changed so is marked until `--declared` takes it back."
    )
    examples = ("nightly-report --cron '0 4 * * *' --missed once", "shop.tasks.report --declared")
    argument = ARGUMENT

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--declared", action="store_true", help="Back to what the code declares.")
        add_settings(parser)

    def run(self, options: Options) -> Report:
        name, settings = options["name"], settings_of(options)
        if bool(settings) == options["declared"]:
            raise UsageError("Name the settings to change, or give --declared alone.")
        if options["declared"]:
            changed = schedules.revert(name, operator(), **audited(options))
        else:
            changed = schedules.edit(name, operator(), settings, **audited(options))
        row = schedules.find(name)
        done = "would be changed" if options["dry_run"] else "is changed"
        text = f"Schedule {name} {done}." if changed else f"Schedule {name} was like that; nothing changed."
        forecast = schedules.forecast(row.recurrence, row.ends_at)
        data = {"schedule": as_json(row, schedules.now()), "changed": changed}
        return Report(data=data, text=[text, as_lines(forecast)])
