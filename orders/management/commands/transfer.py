"""`transfer`: move money between two accounts."""

from argparse import ArgumentTypeError
from decimal import Decimal

from django.core.management.base import CommandParser
from django.db import transaction

from orders import accounts
from orders.accounts import InvalidAmount
from tasks.commands import OperatorCommand, Options, Report, operator, types
from tasks.support import reading
from tasks.support.reading import Unreadable


def amount(written: str) -> Decimal:
    """Parse a sum of money: positive, at most two decimals."""
    try:
        return accounts.checked(reading.decimal(written))
    except (Unreadable, InvalidAmount) as error:
        raise ArgumentTypeError(str(error)) from error


class Command(OperatorCommand):
    help = "Move money from one account to another: both sides or neither, with a ledger entry on each."
    examples = ("1 2 12.50", "1 2 12.50 --strategy optimistic --dry-run")

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("from_id", type=types.row_id, metavar="FROM", help="The account to take from.")
        parser.add_argument("to_id", type=types.row_id, metavar="TO", help="The account to put on.")
        parser.add_argument("amount", type=amount, metavar="AMOUNT", help="How much, for example 12.50.")
        parser.add_argument(
            "--strategy",
            choices=("pessimistic", "optimistic"),
            default="pessimistic",
            help="Lock both rows first, or compare-and-swap by version with bounded retries.",
        )

    def run(self, options: Options) -> Report:
        from_id, to_id = options["from_id"], options["to_id"]
        with transaction.atomic():
            change = accounts.transfer(from_id, to_id, options["amount"], strategy=options["strategy"])
            accounts.record(change, operator(), f"transfer {options['amount']}", options["reason"])
            transaction.set_rollback(options["dry_run"])
        data = {
            "balance_from": str(change.balances[from_id]),
            "balance_to": str(change.balances[to_id]),
            "retries": change.retries,
        }
        moved = "would move" if options["dry_run"] else "moved"
        text = (
            f"{options['amount']} {moved} from account {from_id} (now {data['balance_from']}) "
            f"to account {to_id} (now {data['balance_to']})."
        )
        return Report(data=data, text=text)
