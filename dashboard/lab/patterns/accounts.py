"""Concurrent updates of one hot account (patterns, system C); every operation deposits 1.00."""

import time
from collections.abc import Iterator
from decimal import Decimal

from django.utils.translation import gettext_lazy as _

from dashboard.lab.bench import Bench
from dashboard.lab.patterns.pattern import Pattern
from orders import accounts
from orders.accounts import Contended
from orders.models import Account, Entry
from tasks.exceptions import Busy

ONE = Decimal("1.00")


def account_unsafe(bench: Bench) -> None:
    """Read, decide and save, whatever others wrote meanwhile."""
    for number, account_id in _operations(bench):
        account = Account.objects.get(pk=account_id)
        _work(bench, number)
        Account.objects.filter(pk=account_id).update(balance=account.balance + ONE)
        Entry.objects.create(account_id=account_id, amount=ONE, kind=Entry.Kind.DEPOSIT)
        bench.ledger.note("effect", number)


def account_pessimistic(bench: Bench) -> None:
    _deposit_all(bench, "pessimistic")


def account_optimistic(bench: Bench) -> None:
    _deposit_all(bench, "optimistic")


def _deposit_all(bench: Bench, strategy: accounts.Strategy) -> None:
    for number, account_id in _operations(bench):
        while not _deposit(bench, number, account_id, strategy):
            bench.ledger.lost_races += 1
        bench.ledger.note("effect", number)


def _deposit(bench: Bench, number: int, account_id: int, strategy: accounts.Strategy) -> bool:
    """One operation, with the plan's work between reading and writing; False if it gave up."""

    def work(read: list[Account]) -> None:
        _work(bench, number)

    try:
        change = accounts.deposit(account_id, ONE, strategy=strategy, check=work)
    except (Busy, Contended):
        return False
    bench.ledger.retries += change.retries
    return True


def _work(bench: Bench, number: int) -> None:
    """The work and the slow call between reading and writing; no rollback undoes the call."""
    with bench.ledger.effect(number, "attempt"):
        time.sleep(bench.plan.work_ms / 1000)
    if bench.plan.remote_ms:
        with bench.ledger.effect(number, "remote"):
            time.sleep(bench.plan.remote_ms / 1000)


def _operations(bench: Bench) -> Iterator[tuple[int, int]]:
    """This worker's share of the operations that the ledger does not record as done, with the account."""
    account_id = Account.objects.values_list("pk", flat=True).get()
    done = bench.ledger.items_done()
    for number in range(bench.number, bench.plan.items, bench.plan.workers):
        if number not in done:
            yield number, account_id


PATTERNS = (
    Pattern(
        name="account_unsafe",
        run=account_unsafe,
        code=(_work,),
        subject="accounts",
        is_safe=False,
        promise=_("None."),
        weakness=_("Two operations read one balance; the second write wipes out the first: a lost update."),
        use=_("Never."),
    ),
    Pattern(
        name="account_pessimistic",
        run=account_pessimistic,
        code=(_deposit_all, _deposit, accounts.deposit),
        subject="accounts",
        is_safe=True,
        promise=_("The row is locked before it is read; nobody decides on a balance that is about to change."),
        weakness=_("Everybody waits in line for the whole work; a slow call in between stops them all."),
        use=_("High contention, short work, or work whose effects must not be repeated."),
    ),
    Pattern(
        name="account_optimistic",
        run=account_optimistic,
        code=(_deposit_all, _deposit, accounts.deposit),
        subject="accounts",
        is_safe=True,
        promise=_("The write happens only if the version is the one that was read; otherwise it starts again."),
        weakness=_("Under contention most of the work is done in vain, and its effects are repeated."),
        use=_("Low contention, slow decisions without effects, and writers outside the program."),
    ),
)
