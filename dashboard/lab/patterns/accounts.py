"""Concurrent updates of one hot account (patterns, system C); every operation deposits 1.00."""

from collections.abc import Iterator
from decimal import Decimal
from functools import partial

from django.utils.translation import gettext_lazy as _

from dashboard.lab.patterns.pattern import Pattern, Rows
from dashboard.lab.worker import Worker
from orders import accounts
from orders.accounts import Contended
from orders.models import Account, Entry
from tasks.exceptions import Busy

FILL_ACCOUNTS = """
WITH owner AS (
    INSERT INTO auth_user
        (username, password, is_superuser, is_staff, is_active, first_name, last_name, email, date_joined)
    VALUES ('lab', '!', false, false, true, '', '', '', now()) RETURNING id
)
INSERT INTO orders_account (owner) SELECT id FROM owner WHERE %(items)s > 0
"""
TOUCH_ACCOUNT = """
UPDATE orders_account SET balance = balance + 1 WHERE id = (SELECT min(id) FROM orders_account) RETURNING id
"""
OPERATIONS_DONE = "SELECT DISTINCT item AS id FROM lab_ledger WHERE kind = 'effect'"
BALANCE_KEPT = "SELECT sum(balance)::int FROM orders_account"
DEPOSITS = "SELECT count(*)::int FROM lab_ledger WHERE kind IN ('effect', 'touch')"
ACCOUNTS = Rows(
    name="accounts",
    source="H. Benita, pessimistic and optimistic updates of one row",
    fill=FILL_ACCOUNTS,
    touch=TOUCH_ACCOUNT,
    done=OPERATIONS_DONE,
    acknowledged=DEPOSITS,
    kept=BALANCE_KEPT,
    following=lambda: Account.objects.order_by("pk"),
    work="attempt",
)

ONE = Decimal("1.00")


def account_unsafe(worker: Worker) -> None:
    """Read, decide and save, whatever others wrote meanwhile."""
    for number, account_id in _operations(worker):
        account = Account.objects.get(pk=account_id)
        worker.work(number, "attempt")
        Account.objects.filter(pk=account_id).update(balance=account.balance + ONE)
        Entry.objects.create(account_id=account_id, amount=ONE, kind=Entry.Kind.DEPOSIT)
        worker.ledger.note("effect", number)


def account_pessimistic(worker: Worker) -> None:
    _deposit_all(worker, "pessimistic")


def account_optimistic(worker: Worker) -> None:
    _deposit_all(worker, "optimistic")


def _deposit_all(worker: Worker, strategy: accounts.Strategy) -> None:
    for number, account_id in _operations(worker):
        while not _deposit(worker, number, account_id, strategy):
            worker.ledger.lost_races += 1
        worker.ledger.note("effect", number)


def _deposit(worker: Worker, number: int, account_id: int, strategy: accounts.Strategy) -> bool:
    """One operation, with the plan's work between reading and writing; False if it gave up."""
    try:
        change = accounts.deposit(account_id, ONE, strategy=strategy, check=lambda read: worker.work(number, "attempt"))
    except (Busy, Contended):
        return False
    worker.ledger.retries += change.retries
    return True


def _operations(worker: Worker) -> Iterator[tuple[int, int]]:
    """This worker's share of the operations that the ledger does not record as done, with the account."""
    account_id = Account.objects.values_list("pk", flat=True).get()
    done = worker.ledger.items_done()
    for number in range(worker.number, worker.plan.items, worker.plan.workers):
        if number not in done:
            yield number, account_id


accounts_pattern = partial(Pattern, rows=ACCOUNTS)
PATTERNS = (
    accounts_pattern(
        account_unsafe,
        code=(Worker.work,),
        is_safe=False,
        promise=_("None."),
        weakness=_("Two operations read one balance; the second write overwrites the first (a lost update)."),
        use=_("Never."),
    ),
    accounts_pattern(
        account_pessimistic,
        code=(_deposit_all, _deposit, accounts.deposit),
        promise=_("The row is locked before it is read; nobody decides on a balance that is about to change."),
        weakness=_("Everybody waits for the whole work; one slow call stops them all."),
        use=_("High contention, short work, or work whose effects must not be repeated."),
    ),
    accounts_pattern(
        account_optimistic,
        code=(_deposit_all, _deposit, accounts.deposit),
        promise=_("The write happens only if the version is the one that was read; otherwise it starts again."),
        weakness=_("Under contention most work is wasted, and its effects are repeated."),
        use=_("Low contention, slow decisions without effects, and writers outside the program."),
    ),
)
