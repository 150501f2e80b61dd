"""`test_alert`: send a test message to the channels of alerts."""

from django.core.management.base import CommandError, CommandParser

from dashboard.alerts import channels, delivery
from dashboard.alerts.delivery import AlertNotSent
from tasks.commands import OperatorCommand, Options, Report, types

NOT_SENT = 4


class Command(OperatorCommand):
    help = "Send a test message to one channel of alerts, or to all. Exit status 4 if one does not take it."
    examples = ("", "ops")
    changes_data = False

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("channel", nargs="?", type=types.text, metavar="CHANNEL", help="Its name; else all.")

    def run(self, options: Options) -> Report:
        chosen = [one for one in channels.channels() if options["channel"] in (None, one.name)]
        if not chosen:
            raise CommandError("There is no such channel: add one in the admin, or set ROWLOCK_ALERT_URLS.")
        sent, problems = [], []
        for channel in chosen:
            try:
                delivery.send(channel, delivery.test_message())
                sent.append(channel.name)
            except AlertNotSent as error:
                problems.append(str(error))
        return Report(
            data={"sent": sent, "problems": problems},
            text="\n".join(f"Sent to {name}." for name in sent),
            problems=problems,
            failure=f"{len(problems)} of {len(chosen)} channels did not take it." if problems else "",
            exit_status=NOT_SENT,
        )
