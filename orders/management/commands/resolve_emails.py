"""`resolve_emails`: record a person's decision about e-mails that may or may not have been sent."""

from django.core.management.base import CommandParser

from orders.shipping import Decision, resolve
from tasks.commands import OperatorCommand, Options, Report, audited, operator, types


class Command(OperatorCommand):
    help = (
        "Resolve e-mails that may or may not have been sent: a crash came between marking and sending, or the mail "
        "server did not answer. Look into the server's log for their Message-ID first. Exit status 1 when some "
        "were refused; --json says why."
    )
    examples = ('1042 --as sent --reason "it is in the log"', "1042 1043 --as resend")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="+", type=types.row_id, metavar="ID", help="Ids of orders.")
        meanings = "; ".join(f"{value}: {meaning}" for value, meaning in Decision.choices)
        parser.add_argument("--as", required=True, dest="decision", choices=Decision.values, help=f"{meanings}.")

    def run(self, options: Options) -> Report:
        decision = Decision(options["decision"])
        result = resolve(options["ids"], decision, operator(), **audited(options))
        refused = [
            {"id": id, "reason": refusal.code, "message": refusal.sentence} for id, refusal in result.refused.items()
        ]
        would = "would be " if options["dry_run"] else ""
        return Report(
            data={"resolved": len(result.resolved), "refused": refused, "ids": result.resolved},
            text=f"{len(result.resolved)} {would}resolved as `{decision.value}`.",
            problems=[f"Order {id}: {refusal.sentence}." for id, refusal in result.refused.items()],
            failure=f"{len(refused)} refused." if refused else "",
        )
