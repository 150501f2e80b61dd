"""`release_lock`: free a named lock whose holder is gone."""

from django.core.management.base import CommandParser

from tasks.commands import OperatorCommand, Options, Report, audited, operator, types
from tasks.locking.named.holder import holder_data
from tasks.operations.locks import release_lock


class Command(OperatorCommand):
    help = (
        "Free a named lock whose holder is gone: its lease is over, or its session has ended. If the holder cannot be "
        "seen (another language, Redis), this needs a --reason. The lock of a live holder stays."
    )
    examples = ("nightly-report --fence 7", 'nightly-report --fence 7 --reason "host db3 is gone"')
    argument = ("name", types.name, "The lock.")

    def add_options(self, parser: CommandParser) -> None:
        text = "Its fence, as shown on the page and by `run_locked`."
        parser.add_argument("--fence", required=True, type=types.fence, metavar="N", help=text)

    def run(self, options: Options) -> Report:
        name, fence = options["name"], options["fence"]
        release = release_lock(name, fence, operator(), **audited(options))
        would = "would be" if options["dry_run"] else "is"
        text = f"The lock {name!r} {would} free." if release.released else release.problem
        return Report(
            data={"released": release.released, "holder": release.holder and holder_data(release.holder)},
            text=text if release.released or release.is_over else "",
            failure="" if release.is_over else release.problem,
        )
