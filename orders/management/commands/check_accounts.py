"""`check_accounts`: check that every balance is the sum of its entries."""

from orders import accounts
from tasks.commands import OperatorCommand, Options, Report
from tasks.commands.base import UNHEALTHY


class Command(OperatorCommand):
    help = "Check that every account's balance is the sum of its ledger entries. Exit status 3 when one is not."
    examples = ("", "--json")
    changes_data = False

    def run(self, options: Options) -> Report:
        found = accounts.mismatches()
        mismatched = [
            {"id": account.id, "balance": str(account.balance), "entries": str(account.entries)} for account in found
        ]
        return Report(
            data={"mismatched": mismatched},
            text=f"Accounts that are wrong: {len(found)}." if found else "Every balance is the sum of its entries.",
            problems=[
                f"Account {account.id} holds {account.balance}, but its entries sum to {account.entries}."
                for account in found
            ],
            failure="The ledger does not add up; somebody changed a balance past Rowlock." if found else "",
            exit_status=UNHEALTHY,
        )
