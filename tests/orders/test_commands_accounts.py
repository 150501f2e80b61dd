"""The commands on accounts, as cron and people run them."""

from decimal import Decimal

import pytest
from django.contrib.auth.models import User

from orders import accounts
from orders.models import Account
from tasks import testing
from tasks.models import Attempt, Intervention, Task
from tasks.operations import schedules
from tasks.support.audit import Who
from tests.commands import run

pytestmark = pytest.mark.django_db


@pytest.fixture
def ids() -> tuple[int, int]:
    owner = User.objects.create_user("anna")
    rich, poor = Account.objects.create(owner=owner), Account.objects.create(owner=owner)
    accounts.deposit(rich.pk, Decimal(100))
    return rich.pk, poor.pk


@pytest.mark.parametrize("strategy", ["pessimistic", "optimistic"])
def test_transfer_moves_money_and_leaves_an_audit(ids: tuple[int, int], strategy: str) -> None:
    outcome = run("transfer", *ids, "12.50", "--strategy", strategy, "--reason", "refund", "--json")
    assert outcome.status == 0
    assert outcome.data == {"balance_from": "87.50", "balance_to": "12.50", "retries": 0}
    rows = Intervention.objects.order_by("id").values_list("action", "target", "reason", "version_before")
    assert list(rows) == [
        ("transfer 12.50", f"account:{ids[0]}", "refund", 2),
        ("transfer 12.50", f"account:{ids[1]}", "refund", 1),
    ]


def test_a_dry_run_moves_nothing(ids: tuple[int, int]) -> None:
    outcome = run("transfer", *ids, "12.50", "--dry-run", "--json")
    assert outcome.data["balance_to"] == "12.50"
    assert Account.objects.get(pk=ids[0]).balance == 100
    assert not Intervention.objects.exists()


def test_what_the_balance_does_not_cover_fails_with_a_sentence(ids: tuple[int, int]) -> None:
    outcome = run("transfer", ids[1], ids[0], "1")
    assert outcome.status == 1
    assert "holds 0.00, which does not cover 1.00" in outcome.stderr


@pytest.mark.parametrize("amount", ["0", "0.001", "NaN", "ten"])
def test_what_is_no_amount_is_wrong_usage(ids: tuple[int, int], amount: str) -> None:
    outcome = run("transfer", *ids, amount)
    assert outcome.status == 2
    assert "AMOUNT" in outcome.stderr


def test_check_accounts_finds_what_does_not_add_up(ids: tuple[int, int]) -> None:
    assert run("check_accounts", "--json").status == 0
    Account.objects.filter(pk=ids[0]).update(balance=Decimal(1))
    outcome = run("check_accounts", "--json")
    assert outcome.status == 3
    assert outcome.data == {"mismatched": [{"id": ids[0], "balance": "1.00", "entries": "100.00"}]}


def test_its_upkeep_fails_while_an_account_does_not_add_up(ids: tuple[int, int]) -> None:
    schedules.switch_on_maintenance("check-accounts", Who("anna", "page"))
    first = schedules.run_now("check-accounts", Who("anna", "page"))
    testing.run_due()
    assert Task.objects.get(pk=first).status == "COMPLETED"
    Account.objects.filter(pk=ids[0]).update(balance=11)
    schedules.run_now("check-accounts", Who("anna", "page"))
    testing.run_due()
    assert f"the sum of their entries: [{ids[0]}]" in Attempt.objects.get().traceback
