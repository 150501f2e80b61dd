"""`LockAwareAdmin` on a model of ours: an edit writes only what was changed, over the version that was shown."""

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.contrib.messages.middleware import MessageMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.db import connection
from django.http import HttpResponse
from django.test import RequestFactory

from orders.models import Account
from tasks.admin import LockAwareAdmin
from tests.sessions import session

pytestmark = pytest.mark.django_db(transaction=True)


class AccountAdmin(LockAwareAdmin):
    fields = ("balance",)
    change_form_template = "admin/change_form.html"


@pytest.fixture
def account() -> Account:
    return Account.objects.create(owner=User.objects.create_user("owner"), balance=100)


def submit(account: Account, seen_version: int, **fields: str) -> tuple[HttpResponse, list[str]]:
    """What the form answers, and the messages that it leaves."""
    form = {"balance": "100.00", "seen_version": seen_version, **fields}
    request = RequestFactory().post(f"/{account.pk}/", form)
    request.user = User.objects.filter(username="root").first() or User.objects.create_superuser("root")
    request._dont_enforce_csrf_checks = True
    SessionMiddleware(lambda _: HttpResponse()).process_request(request)
    MessageMiddleware(lambda _: HttpResponse()).process_request(request)
    response = AccountAdmin(Account, admin.site).changeform_view(request, str(account.pk))
    if hasattr(response, "render"):
        response.render()
    return response, [str(message) for message in get_messages(request)]


def test_an_edit_saves_only_what_was_changed_and_raises_the_version(account: Account) -> None:
    heir = User.objects.create_user("heir")
    with session() as other:
        other.execute("UPDATE orders_account SET owner = %s WHERE id = %s", [heir.pk, account.pk])
        other.commit()
    account.refresh_from_db()
    response, _ = submit(account, account.version, balance="120.00")
    assert response.status_code == 302
    saved = Account.objects.get()
    assert (saved.balance, saved.owner_id, saved.version) == (120, heir.pk, account.version + 1)


def test_the_second_of_two_people_sees_what_changed_and_overwrites_nothing(account: Account) -> None:
    assert submit(account, account.version, balance="110.00")[0].status_code == 302
    response, _ = submit(account, account.version, balance="120.00")
    assert response.status_code == 200
    page = response.content.decode()
    assert "Somebody changed this row since you opened it (version 1, now 2)." in page
    assert "balance is 110.00 now, and you wrote 120.00" in page
    assert Account.objects.get().balance == 110


def test_who_comes_between_the_look_and_the_write_is_not_overwritten(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model = AccountAdmin.save_model

    def somebody_is_faster(self: AccountAdmin, *args: object) -> None:
        with session() as other:
            other.execute("UPDATE orders_account SET balance = 110 WHERE id = %s", [account.pk])
            other.commit()
        save_model(self, *args)

    monkeypatch.setattr(AccountAdmin, "save_model", somebody_is_faster)
    response, messages = submit(account, account.version, balance="120.00")
    assert response.status_code == 302
    assert "somebody else changed or deleted" in messages[0]
    assert Account.objects.get().balance == 110


def test_a_locked_row_is_busy_and_names_its_holder(account: Account) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '200ms'")
    with session("psql of anna") as holder:
        holder.execute("SELECT 1 FROM orders_account WHERE id = %s FOR UPDATE", [account.pk])
        response, messages = submit(account, account.version, balance="120.00")
        pid = holder.info.backend_pid
    with connection.cursor() as cursor:
        cursor.execute("RESET lock_timeout")
    assert response.status_code == 302
    assert f"The row is busy: Held by pid {pid} (psql of anna)" in messages[0]
    assert Account.objects.get().balance == 100
