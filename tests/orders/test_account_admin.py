"""Accounts in the admin: the ledger on the page, money moved by form, rights, and what is wrong said beside it."""

import re
from decimal import Decimal

import pytest
from django.contrib.auth.models import User

from orders import accounts
from orders.models import Account
from tasks.models import Intervention
from tasks.operations.tokens import new_token
from tests.html import flat
from tests.people import client_of
from tests.sessions import session

pytestmark = pytest.mark.django_db
LIST = "/admin/orders/account/"


@pytest.fixture
def rich() -> Account:
    return opened(Decimal(100))


@pytest.fixture
def poor() -> Account:
    return opened(Decimal(1))


def opened(balance: Decimal) -> Account:
    account = Account.objects.create(owner=User.objects.create_user(f"owner of {balance}"))
    accounts.deposit(account.pk, balance)
    return account


def move(account: Account, group: str = "Account managers", **form: object):
    form = {"operation": "deposit", "amount": "12.50", "strategy": "pessimistic", "token": new_token(), **form}
    return client_of(group).post(f"{LIST}{account.pk}/move/", form, follow=True)


def balance(account: Account) -> Decimal:
    return Account.objects.get(pk=account.pk).balance


def test_an_empty_list_says_how_an_account_is_opened() -> None:
    page = client_of("Viewers").get(LIST).text
    assert "There is no account yet." in page
    assert "Account.objects.create(owner=" in page
    assert "Select account" not in page
    opened(Decimal(1))
    assert "There is no account yet." not in client_of("Viewers").get(LIST).text


@pytest.mark.django_db(transaction=True)
def test_the_list_shows_balance_verdict_holder_and_version(rich: Account, poor: Account) -> None:
    with session("psql of anna") as holder:
        holder.execute("SELECT 1 FROM orders_account WHERE id = %s FOR UPDATE", [poor.pk])
        page = client_of("Viewers").get(LIST).content.decode()
        pid = holder.info.backend_pid
    locked, free = page.split("<tbody>")[1].split("</tr>")[:2]
    assert f'Row locked</td><td class="field-holder"><a href="/admin/ops/locks/#node-{pid}">' in locked
    assert f"session {pid}</a> (psql of anna), transaction open for" in locked
    assert "100.00" in free
    assert "Free" in free
    assert "v2" in free


@pytest.mark.django_db(transaction=True)
def test_the_page_says_who_locks_the_account(rich: Account) -> None:
    client = client_of("Viewers")
    with session("psql of anna") as holder:
        holder.execute("SELECT 1 FROM orders_account WHERE id = %s FOR UPDATE", [rich.pk])
        page = client.get(f"{LIST}{rich.pk}/change/").text
        line = client.get(f"{LIST}{rich.pk}/lock/").text
        assert f'<p class="holder">Locked by <a href="/admin/ops/locks/#node-{holder.info.backend_pid}">' in page
    assert "(psql of anna), transaction open for" in line
    assert client.get(f"{LIST}{rich.pk}/lock/").text == '<p class="quiet">No session locks this row.</p>'


def test_the_form_offers_the_other_accounts(rich: Account, poor: Account) -> None:
    page = client_of("Account managers").get(f"{LIST}{rich.pk}/change/").text
    offered = page.partition('<datalist id="accounts">')[2].partition("</datalist>")[0]
    assert re.findall(r'value="(\d+)">(.*?)<', offered) == [(str(poor.pk), "owner of 1, 1.00")]


def test_the_answer_of_a_transfer_leads_to_the_other_account(rich: Account, poor: Account) -> None:
    page = move(rich, operation="transfer", to_id=poor.pk).text
    assert f'12.50 → <a href="{LIST}{poor.pk}/change/">Account {poor.pk}</a>' in page


def test_who_may_not_move_money_sees_the_button_disabled(rich: Account) -> None:
    page = flat(client_of("Viewers").get(f"{LIST}{rich.pk}/change/").text)
    assert 'data-action="move-money" disabled aria-describedby="right-move"' in page


def test_the_page_shows_the_ledger_and_whether_it_adds_up(rich: Account) -> None:
    client = client_of("Viewers")
    assert "The sum of the entries is the balance." in client.get(f"{LIST}{rich.pk}/change/").content.decode()
    Account.objects.filter(pk=rich.pk).update(balance=Decimal(70))
    assert "The entries sum to 100.00" in client.get(f"{LIST}{rich.pk}/change/").content.decode()


@pytest.mark.parametrize("strategy", ["pessimistic", "optimistic"])
@pytest.mark.parametrize(("operation", "left"), [("deposit", "112.50"), ("withdraw", "87.50"), ("transfer", "87.50")])
def test_money_moves_and_the_audit_knows(
    rich: Account, poor: Account, strategy: str, operation: str, left: str
) -> None:
    page = move(rich, operation=operation, strategy=strategy, to_id=poor.pk, reason="refund")
    assert f"the balance is {left}" in page.content.decode()
    assert balance(rich) == Decimal(left)
    assert balance(poor) == (Decimal("13.50") if operation == "transfer" else 1)
    row = Intervention.objects.get(target=f"account:{rich.pk}")
    assert (row.actor, row.source, row.action, row.reason) == ("anna", "page", f"{operation} 12.50", "refund")


@pytest.mark.parametrize("group", ["Viewers", "Operators", "Lock administrators"])
def test_only_account_managers_move_money(rich: Account, group: str) -> None:
    answer = move(rich, group)
    assert answer.status_code == 403
    assert "Account managers" in answer.content.decode()
    assert balance(rich) == 100


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"amount": "0"}, "not positive"),
        ({"amount": "0.001"}, "more than two decimals"),
        ({"amount": "ten"}, "Enter a number"),
        ({"operation": "transfer"}, "to which account"),
        ({"operation": "steal"}, "not one of the available choices"),
        ({"strategy": "hope"}, "not one of the available choices"),
    ],
)
def test_a_wrong_form_is_shown_again_with_what_is_wrong(rich: Account, wrong: dict[str, str], said: str) -> None:
    answer = move(rich, **wrong)
    assert answer.status_code == 400
    assert said in answer.content.decode()
    assert balance(rich) == 100


def test_what_the_balance_does_not_cover_is_refused_in_words(rich: Account) -> None:
    assert "does not cover" in move(rich, operation="withdraw", amount="100.01").content.decode()
    assert balance(rich) == 100
    assert not Intervention.objects.exists()


def test_the_form_answers_no_get(rich: Account) -> None:
    assert client_of("Account managers").get(f"{LIST}{rich.pk}/move/").status_code == 405


def test_a_double_click_moves_the_money_once_and_is_no_error(rich: Account) -> None:
    token = new_token()
    answers = [move(rich, token=token).content.decode() for _ in range(2)]
    assert ["Done: the balance is 112.50, after 0 retries." in answer for answer in answers] == [True, True]
    assert balance(rich) == Decimal("112.50")
    assert Intervention.objects.count() == 1


def test_what_was_refused_can_be_sent_again(rich: Account, poor: Account) -> None:
    token = new_token()
    form = {"operation": "withdraw", "amount": "2.00", "token": token}
    assert "Done" not in move(poor, **form).content.decode()
    accounts.deposit(poor.pk, Decimal(5))
    assert "Done" in move(poor, **form).content.decode()
    assert balance(poor) == Decimal("4.00")


@pytest.mark.parametrize("token", ["", "short", "é" * 20])
def test_a_form_that_no_page_made_moves_nothing(rich: Account, token: str) -> None:
    assert move(rich, token=token).status_code == 400
    assert balance(rich) == Decimal(100)


def test_the_page_gives_each_form_a_token_of_its_own(rich: Account) -> None:
    client = client_of("Account managers")
    pages = [client.get(f"{LIST}{rich.pk}/change/") for _ in range(2)]
    tokens = {re.search(r'name="token" value="([^"]{16,})"', page.content.decode()).group(1) for page in pages}
    assert len(tokens) == 2
