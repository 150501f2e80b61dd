"""The command of a registered pattern; an adopter's command takes two lines.

class Command(PatternCommand):
    pattern = "notify_parcels"
"""

from typing import Any, get_args

from django.core.management.base import CommandError, CommandParser
from django.db import NotSupportedError

from tasks import patterns
from tasks.commands import types
from tasks.commands.base import OperatorCommand, Options, Report
from tasks.diagnosis.finding import describe_lock
from tasks.locking import rowlocks
from tasks.locking.double_checked import OnLocked
from tasks.locking.report import SHOWN, plain
from tasks.patterns import Pattern, RunReport


class PatternCommand(OperatorCommand):
    """Runs the pattern named by `pattern`; runs may overlap, so cron may start it as often as you like."""

    pattern = ""
    changes_data = False  # no person intervenes: no audit, but a dry run

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = str(patterns.get(self.pattern).description)

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="Lock the same rows and let them go.")
        parser.add_argument("--limit", type=types.count, metavar="N", help="Handle at most so many rows.")
        parser.add_argument(
            "--until-empty",
            action="store_true",
            help="Go round until nothing is left to do; bounded to some 15 s of waiting.",
        )
        parser.add_argument(
            "--on-locked",
            choices=get_args(OnLocked),
            default="skip",
            help="What to do with a row that somebody else holds: leave it to the next run (skip), name its holder too "
            "(report), or wait for it up to 2 s (wait).",
        )
        for choice in patterns.get(self.pattern).choices:
            meanings = " ".join(f"{value}: {meaning}" for value, meaning in choice.values.items())
            parser.add_argument(
                f"--{choice.name}",
                choices=list(choice.values),
                default=choice.default,
                help=f"{meanings} Default: {choice.default}.".replace("%", "%%"),
            )

    def run(self, options: Options) -> Report:
        pattern = patterns.get(self.pattern)
        with self.chunks(options) as progress:
            report = _run(
                pattern,
                on_locked=options["on_locked"],
                limit=options["limit"],
                until_empty=options["until_empty"],
                dry_run=options["dry_run"],
                progress=lambda rows: progress(rows.candidates, None),
                **{choice.name: options[choice.name] for choice in pattern.choices},
            )
        holders = _holders(pattern, report) if options["on_locked"] == "report" else {}
        left = [f"{pattern.model._meta.object_name} {key} was left: {holder}." for key, holder in holders.items()]
        data = report.as_dict()
        if holders:
            data["locked"] = [{"id": plain(key), "holder": holder} for key, holder in holders.items()]
        text = f"Dry run, nothing was changed. {report}" if options["dry_run"] else str(report)
        return Report(data=data, text=text, problems=report.problems + left, failure=report.failure)


def _run(pattern: Pattern, **options: Any) -> RunReport:
    """Report NotSupportedError as it is, not as an unreachable database."""
    try:
        return pattern.run(**options)
    except NotSupportedError as error:
        raise CommandError(str(error)) from error


def _holders(pattern: Pattern, report: RunReport) -> dict[Any, str]:
    left = report.locked[:SHOWN]
    locks = rowlocks.lockers(pattern.model, left)
    return {key: describe_lock(locks[key]) if key in locks else "whoever held it has let go since" for key in left}
