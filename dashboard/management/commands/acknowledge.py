"""`acknowledge`: fold a line of "Needs attention" away, for a time or until it grows."""

from django.core.management.base import CommandError, CommandParser

from dashboard.attention import inbox
from tasks.commands import OperatorCommand, Options, Report, UsageError, audited, operator, types
from tasks.panels import Snapshot


class Command(OperatorCommand):
    help = "Acknowledge a line of `show_attention`: it stands folded, with your name and --reason, until it ends."
    examples = (
        'stale:payouts --until-it-grows --reason "asked the bank"',
        'stale:payouts --for 8h --reason "night shift knows"',
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("line", type=types.text, metavar="LINE", help="The line, as `show_attention` names it.")
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--until-it-grows", action="store_true", help="Until it is about more than now.")
        which.add_argument("--for", dest="lasts", type=types.duration, metavar="8h", help="For so long, at most 30d.")
        which.add_argument("--withdraw", action="store_true", help="Show it again.")

    def run(self, options: Options) -> Report:
        if options["withdraw"]:
            return withdraw(options)
        if not options["reason"].strip():
            raise UsageError("Acknowledging needs a --reason, which the next shift reads.")
        line = inbox.gather(Snapshot(), lambda right: True).find(options["line"])
        if line is None:
            raise CommandError(f"Nothing named {options['line']!r} needs attention: see `show_attention`.")
        size = line.size if options["until_it_grows"] else None
        is_new = inbox.acknowledge(line, operator(), lasts=options["lasts"], size=size, **audited(options))
        text = f"Acknowledged: {line.text}" if is_new else f"Acknowledged so before: {line.text}"
        return Report(data={"acknowledged": is_new, "line": line.name}, text=text)


def withdraw(options: Options) -> Report:
    was_known = inbox.withdraw(options["line"], operator(), **audited(options))
    text = "The line is shown again." if was_known else "That line was not acknowledged."
    return Report(data={"withdrawn": was_known, "line": options["line"]}, text=text)
