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


class PatternCommand(OperatorCommand):
    """Runs the pattern named by `pattern`; runs may overlap, so cron may start it as often as you like."""

    pattern = ""
    examples = ("--until-empty", "--limit 100 --on-locked report")
    changes_data = False  # no person intervenes: no audit, but a dry run

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = str(patterns.get(self.pattern).description)

    def add_options(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--dry-run", action="store_true", help="Lock the same rows and let them go.")
        add("--limit", type=types.count, metavar="N", help="Handle at most so many rows.")
        bound = "Go round until nothing is left to do; bounded to some 15 s of waiting."
        add("--until-empty", action="store_true", help=bound)
        locked = (
            "What to do with a row that somebody else holds: leave it to the next run (skip), name its holder too "
            "(report), or wait for it up to 2 s (wait)."
        )
        add("--on-locked", choices=get_args(OnLocked), default="skip", help=locked)
        for choice in patterns.get(self.pattern).choices:
            meanings = " ".join(f"{value}: {meaning}" for value, meaning in choice.values.items())
            text = f"{meanings} Default: {choice.default}.".replace("%", "%%")
            add(f"--{choice.name}", choices=list(choice.values), default=choice.default, help=text)

    def run(self, options: Options) -> Report:
        pattern = patterns.get(self.pattern)
        names = ["on_locked", "limit", "until_empty", "dry_run", *(choice.name for choice in pattern.choices)]
        chosen = {name: options[name] for name in names}
        try:
            with self.chunks(options) as progress:
                report = pattern.run(progress=lambda rows: progress(rows.candidates, None), **chosen)
        except NotSupportedError as error:  # not an unreachable database
            raise CommandError(str(error)) from error
        data, left = report.as_dict(), []
        if options["on_locked"] == "report" and report.locked:
            data["locked"] = []
            locks = rowlocks.lockers(pattern.model, report.locked[:SHOWN])
            for key in report.locked[:SHOWN]:
                holder = describe_lock(locks[key]) if key in locks else "whoever held it has let go since"
                left.append(f"{pattern.model._meta.object_name} {key} was left: {holder}.")
                data["locked"].append({"id": plain(key), "holder": holder})
        text = f"Dry run, nothing was changed. {report}" if options["dry_run"] else str(report)
        return Report(data=data, text=text, problems=report.problems + left, failure=report.failure)
