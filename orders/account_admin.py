"""Accounts in the admin: the ledger on the page, and forms that move money by either strategy."""

from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from orders import accounts
from orders.accounts import InvalidAmount
from orders.models import Account
from tasks.admin import LockAwareAdmin
from tasks.admin.forms import ConfirmedForm, DecimalField, WholeNumberField
from tasks.admin.read_only import ReadOnlyAdmin
from tasks.admin.rights import missing, require, who
from tasks.diagnosis.finding import command
from tasks.exceptions import RowlockError
from tasks.locking import rowlocks
from tasks.operations.tokens import once

RIGHT = "orders.move_money"
ENTRIES = 50
OPERATIONS = {"deposit": _("Deposit"), "withdraw": _("Withdraw"), "transfer": _("Transfer")}
STRATEGIES = (
    ("pessimistic", _("Pessimistic: lock the row first, others wait")),
    ("optimistic", _("Optimistic: compare and swap by version, start again when somebody was first")),
)


class MoneyForm(ConfirmedForm):
    """A form for one deposit, withdrawal or transfer."""

    operation = forms.ChoiceField(label=_("Operation"), choices=OPERATIONS)
    amount = DecimalField(label=_("Amount"), help_text=_("At most two decimals, like 12.50."))
    to_id = WholeNumberField(label=_("To account"), required=False, min_value=1, help_text=_("For a transfer."))
    strategy = forms.ChoiceField(label=_("Strategy"), choices=STRATEGIES)

    def clean_amount(self) -> Decimal:
        try:
            return accounts.checked(self.cleaned_data["amount"])
        except InvalidAmount as error:
            raise forms.ValidationError(str(error)) from error

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get("operation") == "transfer" and not cleaned.get("to_id") and "to_id" not in self.errors:
            self.add_error("to_id", _("Say to which account the money goes."))
        return cleaned

    def carry_out(self, account_id: int) -> accounts.Change:
        """Move the money. Raises AccountError, or Busy."""
        data = self.cleaned_data
        amount, strategy = data["amount"], data["strategy"]
        if data["operation"] == "transfer":
            return accounts.transfer(account_id, data["to_id"], amount, strategy=strategy)
        operation = {"deposit": accounts.deposit, "withdraw": accounts.withdraw}[data["operation"]]
        return operation(account_id, amount, strategy=strategy)


@admin.register(Account)
class AccountAdmin(ReadOnlyAdmin, LockAwareAdmin):
    list_display = ("id", "owner", "balance")
    list_select_related = ("owner",)
    search_fields = ("=id", "owner__username")
    ordering = ("-id",)

    def get_urls(self) -> list[URLPattern]:
        move = self.admin_site.admin_view(require_POST(self.move_view))
        return [path("<int:account_id>/move/", move, name="orders_account_move"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"title": _("Accounts"), **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        require(request.user, "orders.view_account")
        account = self.get_object(request, object_id)
        if account is None:
            raise Http404(_("There is no such account."))
        return self._page(request, account, MoneyForm())

    def move_view(self, request: HttpRequest, account_id: int) -> HttpResponse:
        """Move money once for each form; show the page again with the errors if the form is invalid."""
        require(request.user, RIGHT)
        account = get_object_or_404(Account.objects.select_related("owner"), pk=account_id)
        form = MoneyForm(request.POST)
        if not form.is_valid():
            return self._page(request, account, form, status=400)
        try:
            moved = once(form.cleaned_data["token"], lambda: self._move(request, account_id, form))
        except RowlockError as error:
            messages.error(request, str(error))
        else:
            balance, retries = moved.target.split()
            values = {"balance": balance, "retries": retries}
            messages.success(request, _("Done: the balance is %(balance)s, after %(retries)s retries.") % values)
        return HttpResponseRedirect(reverse("admin:orders_account_change", args=[account_id]))

    @staticmethod
    def _move(request: HttpRequest, account_id: int, form: MoneyForm) -> str:
        """Move and audit; returns balance and number of retries as text, for a repeated click."""
        data = form.cleaned_data
        with transaction.atomic():
            change = form.carry_out(account_id)
            accounts.record(change, who(request.user), f"{data['operation']} {data['amount']}", data["reason"])
        return f"{change.balances[account_id]} {change.retries}"

    def _page(self, request: HttpRequest, account: Account, form: MoneyForm, status: int = 200) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": _("Account %(id)s") % {"id": account.pk},
            "opts": self.opts,
            "account": account,
            "entries": account.entries.order_by("-id")[:ENTRIES],
            "mismatch": accounts.mismatch_of(account.pk),
            "form": form,
            "transfer_command": command("transfer", str(account.pk), "TO", "AMOUNT"),
            "missing_right": missing(request.user, RIGHT),
            "lock": rowlocks.lockers(Account, [account.pk]).get(account.pk),
        }
        return TemplateResponse(request, "admin/orders/account/change_form.html", context, status=status)
