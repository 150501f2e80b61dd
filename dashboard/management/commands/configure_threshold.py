"""`configure_threshold`: set when a line of "Needs attention" appears."""

from argparse import ArgumentTypeError

from django.core.management.base import CommandParser

from dashboard.attention import thresholds
from tasks.commands import OperatorCommand, Options, Report, UsageError, audited, operator


class Command(OperatorCommand):
    help = "Set a threshold of `show_attention`; `default` gives it back. The page Alerts says what each is for."
    examples = ('late_seconds 10m --reason "reports may wait"', "connections_percent default")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("name", choices=sorted(thresholds.DEFAULTS), metavar="NAME", help="The threshold.")
        parser.add_argument("value", metavar="VALUE", help="Like 90s or 5m for one in seconds, else a whole number.")

    def run(self, options: Options) -> Report:
        name, written = options["name"], options["value"]
        try:
            value = None if written == "default" else thresholds.parser(name)(written)
        except ArgumentTypeError as error:
            raise UsageError(str(error)) from error
        changed = thresholds.change(name, value, operator(), **audited(options))
        present = thresholds.written(name, thresholds.USUAL[name] if value is None else value)
        text = (
            f"Threshold {name}: {present}." if changed else f"Threshold {name}: {present} as before; nothing changed."
        )
        return Report(data={"name": name, "value": present, "changed": changed}, text=text)
