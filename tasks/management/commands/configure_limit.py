"""`configure_limit`: choose how many tasks of a key run at once and how many start in a period, or pause them."""

from argparse import SUPPRESS
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from tasks.commands import OperatorCommand, Options, Report, audited, operator, types
from tasks.commands.base import UsageError
from tasks.operations.queues import set_limit


class Command(OperatorCommand):
    help = (
        "Limit the tasks of a key, whatever they declare: how many run at once, and how many start in a period. "
        "`none` takes a limit away, so that the declared one counts again. Tasks that run already go on."
    )
    examples = ("customer-7 --max-running 3 --rate 100/m", "customer-7 --max-running none --pause")
    argument = ("key", types.name, "The concurrency key or rate key.")

    def add_options(self, parser: CommandParser) -> None:
        add_limits(parser)
        switch = parser.add_mutually_exclusive_group()
        switch.add_argument("--pause", action="store_true", help="Start none of its tasks until --resume.")
        switch.add_argument("--resume", action="store_true", help="Start its tasks again.")

    def run(self, options: Options) -> Report:
        key, asked = options["key"], limits_of(options)
        if options["pause"] or options["resume"]:
            asked["paused"] = options["pause"]
        if not asked:
            raise UsageError("Nothing to change: give --max-running, --rate, --pause or --resume.")
        changed = set_limit(key, operator(), **asked, **audited(options))
        text = f"Limit of key {key}: {spoken(asked)}" + ("." if changed else ", as before; nothing changed.")
        return Report(data={"key": key, **asked, "changed": changed}, text=text)


def add_limits(parser: CommandParser) -> None:
    """Add the two options that limits of keys and of queues share."""
    parser.add_argument(
        "--max-running", type=types.at_once, default=SUPPRESS, metavar="N", help="How many run at once, or none."
    )
    parser.add_argument(
        "--rate", type=types.rate, default=SUPPRESS, metavar="R", help="Starts in a period, like 5/s or 100/m, or none."
    )


def limits_of(options: Options) -> dict[str, Any]:
    """Return the given ones of the two options."""
    return {name: options[name] for name in ("max_running", "rate") if name in options}


def spoken(asked: Mapping[str, Any]) -> str:
    """Say in words what was asked for."""
    words = {
        "max_running": f"at most {asked.get('max_running')} at once",
        "rate": f"at most {asked.get('rate')}",
        "paused": "paused" if asked.get("paused") else "not paused",
    }
    none = {"max_running": "no number at once", "rate": "no rate"}
    return ", ".join(none[name] if value is None else words[name] for name, value in asked.items())
