"""`resolve_emails`: record a person's decision about e-mails of unknown fate."""

from django.core.management.base import CommandParser

from orders.resolving import CONSEQUENCES, Decision, Resolution, resolve
from tasks.commands import OperatorCommand, Options, Report, operator, types


class Command(OperatorCommand):
    help = (
        "Resolve e-mails of unknown fate: ones that a crash left between marking and sending, or that the mail server "
        "did not answer. Look into the server's log for their Message-ID first. Exit status 1 when some were refused; "
        "--json says why."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="+", type=types.row_id, metavar="ID", help="Ids of orders.")
        meanings = "; ".join(f"{decision.value}: {meaning}" for decision, meaning in CONSEQUENCES.items())
        parser.add_argument(
            "--as",
            required=True,
            dest="decision",
            choices=[decision.value for decision in Decision],
            help=f"{meanings}.",
        )

    def run(self, options: Options) -> Report:
        decision = Decision(options["decision"])
        result = resolve(options["ids"], decision, operator(), reason=options["reason"], dry_run=options["dry_run"])
        would = "would be " if options["dry_run"] else ""
        return Report(
            data=as_dict(result),
            text=f"{len(result.resolved)} {would}resolved as `{decision.value}`.",
            problems=[f"Order {id}: {refusal.sentence}." for id, refusal in result.refused.items()],
            failure=f"{len(result.refused)} refused." if result.refused else "",
        )


def as_dict(result: Resolution) -> dict[str, object]:
    refused = [
        {"id": id, "reason": refusal.code, "message": refusal.sentence} for id, refusal in result.refused.items()
    ]
    return {"resolved": len(result.resolved), "refused": refused, "ids": result.resolved}
