"""Orders and accounts in the admin: e-mails and the form that resolves unknown ones, the ledger and moves of money."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db import connection, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from orders import accounts
from orders.accounts import InvalidAmount
from orders.mailer import message_id
from orders.models import Account, Order, OrderQuerySet
from orders.shipping import Decision, Resolution, resolve
from tasks.admin import LockAwareAdmin, PatternAdmin
from tasks.admin.forms import ConfirmedForm, DecimalField, WholeNumberField
from tasks.admin.lock_aware import lock_line
from tasks.admin.read_only import COUNT_CAP, CappedPaginator, ReadOnlyAdmin, estimate
from tasks.admin.rights import missing, require, who
from tasks.diagnosis.finding import command
from tasks.exceptions import RowlockError
from tasks.operations.filters import parse_id
from tasks.operations.tokens import once
from tasks.support import reading
from tasks.support.addresses import address
from tasks.support.database import fetch

SHIP = "orders.ship_order"
MOVE = "orders.move_money"
MOST_ORDERS = 500
SHOWN_REPLY = 100  # characters
SHOWN_LINKS = 10
STATES = {  # the shapes of the other pages
    Order.EmailState.NONE: "verdict",
    Order.EmailState.SENDING: "verdict verdict-running",
    Order.EmailState.SENT: "verdict verdict-completed",
    Order.EmailState.UNKNOWN: "verdict is-stuck",
}
EMAIL_FIELDS = (
    "email_state",
    "shipped_email_sent",
    "email_attempts",
    "email_next_at",
    "email_since",
    "email_owner",
    "email_reply",
    "message_id",
)

NUMBERS = """
SELECT (SELECT count(*) FROM (SELECT FROM orders_order LIMIT %(cap)s::int) AS capped) AS total,
    (SELECT count(*) FROM (
        SELECT FROM orders_order WHERE email_state = 'none' LIMIT %(cap)s::int) AS capped) AS none,
    (SELECT count(*) FROM (
        SELECT FROM orders_order WHERE email_state = 'sending' LIMIT %(cap)s::int) AS capped) AS sending,
    (SELECT count(*) FROM (
        SELECT FROM orders_order WHERE email_state = 'unknown' LIMIT %(cap)s::int) AS capped) AS unknown
"""


class Tabs(admin.ChoicesFieldListFilter):
    """The states as tabs over the list, with the number of orders unless a search narrows the list."""

    template = "admin/orders/order/tabs.html"

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        numbers = {} if changelist.query else numbers_by_state()
        for choice, state in zip(super().choices(changelist), ("", *Order.EmailState.values), strict=True):
            yield {**choice, "number": numbers.get(state, "")}


def numbers_by_state() -> dict[str, str]:
    """How many orders each state has, and how many there are under the empty one; in texts.

    Counted up to COUNT_CAP. Above it the numbers of all and of the sent ones are estimates, as no index counts them.
    """
    found, orders = fetch(connection, NUMBERS, {"cap": COUNT_CAP})[0], Order.objects.all()
    total = found.pop("total")
    if total < COUNT_CAP:
        exact = {**found, "": total, "sent": total - sum(found.values())}
        return {state: grouped(number) for state, number in exact.items()}
    guesses = {"": max(total, estimate(orders)), "sent": estimate(orders.filter(email_state="sent"))}
    texts = {state: grouped(number) + ("+" if number >= COUNT_CAP else "") for state, number in found.items()}
    return texts | {state: f"≈ {grouped(number)}" for state, number in guesses.items()}


def grouped(number: int) -> str:
    return number_format(number, force_grouping=True)


@admin.register(Order)
class OrderAdmin(PatternAdmin, LockAwareAdmin):
    list_display = ("id", "customer_email", "shipped", "email", "verdict", "holder", "row_version", "steps")
    list_filter = (("email_state", Tabs),)
    search_fields = ("=id", "customer_email__exact")
    readonly_fields = EMAIL_FIELDS
    fieldsets = (
        (None, {"fields": ("customer_email", "placed_at", "shipped_at")}),
        (_("E-mail about the shipment"), {"fields": EMAIL_FIELDS}),
    )
    actions = ("resolve_emails",)
    actions_on_top, actions_on_bottom = False, True
    paginator = CappedPaginator
    show_full_result_count = False
    change_form_template = "admin/orders/order/change_form.html"

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_POST(self.resolve_view))
        return [path("resolve/", view, name="orders_order_resolve"), *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> OrderQuerySet:
        orders: Any = super().get_queryset(request)
        return orders.pending_first()

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> forms.Field | None:
        """Name both inputs of a moment: the stock label belongs to the first one alone."""
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if isinstance(field, forms.SplitDateTimeField):
            for part, word in zip(field.widget.widgets, (_("date"), _("time")), strict=True):
                part.attrs["aria-label"] = f"{capfirst(field.label)}: {word}"
        return field

    @admin.display(description=_("shipped at"), ordering="shipped_at")
    def shipped(self, order: Order) -> str | None:
        if order.shipped_at is None:
            return None
        return format_html('<time datetime="{}">{}</time>', order.shipped_at.isoformat(), written(order.shipped_at))

    @admin.display(description=_("e-mail"), ordering="email_state")
    def email(self, order: Order) -> str:
        """The state of the e-mail with its next attempt, time and reply."""
        if order.shipped_at is None:
            return ""
        reply, at = order.email_reply[:SHOWN_REPLY], ""
        if order.email_next_at:
            values = {"number": order.email_attempts + 1, "at": written(order.email_next_at)}
            at = _("attempt %(number)d at %(at)s") % values
        elif order.email_since:
            at = written(order.email_since)
        more = "; ".join(filter(None, (at, reply if order.email_state != Order.EmailState.SENT else "")))
        state = STATES[Order.EmailState(order.email_state)]
        return format_html('<span class="{}">{}</span> {}', state, order.get_email_state_display(), more)

    @admin.display(description=_("next step"), empty_value="")
    def steps(self, order: Order) -> str:
        """The button of a row: only an e-mail that may or may not have been sent needs a person."""
        if order.email_state != Order.EmailState.UNKNOWN:
            return ""
        return format_html(
            '<button type="submit" class="button" name="seen" value="{}:{}" formaction="{}" data-dialog '
            'data-action="resolve-email">{}…</button>',
            order.pk, order.version, address("admin:orders_order_resolve"), _("Resolve"),
        )  # fmt: skip

    @admin.display(description=_("Message-ID"))
    def message_id(self, order: Order) -> str:
        return message_id(order)

    @admin.action(description=_("Resolve e-mails that may have been sent…"), permissions=["view"])
    def resolve_emails(self, request: HttpRequest, queryset: OrderQuerySet) -> HttpResponse | None:
        """List the orders that would be resolved; that page asks for the decision and the reason."""
        unknown = list(queryset.of_unknown_fate()[: MOST_ORDERS + 1])
        if not unknown:
            messages.info(request, _("None of these orders has an e-mail that may have been sent."))
            return None
        if len(unknown) > MOST_ORDERS:
            messages.info(
                request, _("These are the first %(number)d; come back for the others.") % {"number": MOST_ORDERS}
            )
        return self._preview(request, unknown[:MOST_ORDERS])

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"title": _("Orders"), **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        order = self.get_object(request, object_id)
        is_unknown = order is not None and order.email_state == Order.EmailState.UNKNOWN
        extra = resolving_context(request, [order]) if order and is_unknown else {}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **extra})

    def resolve_view(self, request: HttpRequest) -> HttpResponse:
        """Carry out the decision on the orders at the versions that the person saw; without a decision ask for it."""
        versions, decision = seen_versions(request), request.POST.get("as", "")
        if versions and "as" not in request.POST and self.has_view_permission(request):
            return self._preview(request, list(Order.objects.of_unknown_fate().filter(pk__in=versions)))
        require(request.user, SHIP)
        reason = reading.reason(request.POST.get("reason", ""))
        if not versions or decision not in Decision.values:
            messages.error(request, _("Choose orders and what became of their e-mails."))
            return HttpResponseRedirect(address("admin:orders_order_changelist"))
        if not reason:
            fault = str(_("This needs a reason, which the audit keeps."))
            return self._preview(request, list(Order.objects.filter(pk__in=versions)), fault=fault, status=400)
        result = resolve(versions, Decision(decision), who(request.user), reason=reason, versions=versions)
        return self._report(request, result)

    def _report(self, request: HttpRequest, result: Resolution) -> HttpResponse:
        if result.resolved:
            number = len(result.resolved)
            done = ngettext("%(number)d e-mail resolved.", "%(number)d e-mails resolved.", number) % {"number": number}
            pages = ((address("admin:orders_order_change", id), id) for id in result.resolved[:SHOWN_LINKS])
            messages.success(request, format_html("{} {}", done, format_html_join(", ", '<a href="{}">{}</a>', pages)))
        for id, refusal in result.refused.items():
            messages.error(request, _("Order %(id)d: %(why)s.") % {"id": id, "why": refusal.sentence})
        moved_on = [id for id, refusal in result.refused.items() if refusal.code in ("changed", "known")]
        if moved_on:
            unknown = list(Order.objects.of_unknown_fate().filter(pk__in=moved_on))
            return self._preview(request, unknown, status=409)
        return HttpResponseRedirect(address("admin:orders_order_changelist"))

    def _preview(
        self, request: HttpRequest, orders: list[Order], *, fault: str = "", status: int = 200
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": _("E-mails that may or may not have been sent"),
            "opts": self.opts,
            "fault": fault,
            **resolving_context(request, orders),
        }
        return TemplateResponse(request, "admin/orders/order/resolve.html", context, status=status)


def written(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def resolving_context(request: HttpRequest, orders: list[Order]) -> dict[str, Any]:
    """Context for the decision form."""
    ids = [str(order.pk) for order in orders]
    return {
        "unknown": [{"order": order, "message_id": message_id(order)} for order in orders],
        "decisions": [
            {"value": value, "consequence": consequence, "command": command("resolve_emails", *ids, "--as", value)}
            for value, consequence in Decision.choices
        ],
        "missing_right": missing(request.user, SHIP),
    }


def seen_versions(request: HttpRequest) -> Mapping[int, int]:
    """The versions of the ticked orders, by id; empty for a malformed form."""
    try:
        pairs = [text.split(":") for text in request.POST.getlist("seen")[:MOST_ORDERS]]
        return {parse_id(id): parse_id(version) for id, version in pairs}
    except ValueError:
        return {}


ENTRIES = 50
OFFERED = 50  # accounts that the form offers to transfer to
OPERATIONS = {"transfer": _("Transfer"), "deposit": _("Deposit"), "withdraw": _("Withdraw")}
STRATEGIES = (
    ("pessimistic", _("Pessimistic: lock the rows first; others wait")),
    ("optimistic", _("Optimistic: compare the versions when writing; try again if somebody was first")),
)


class MoneyForm(ConfirmedForm):
    """A form for one deposit, withdrawal or transfer."""

    operation = forms.ChoiceField(
        label=_("Operation"), choices=OPERATIONS, initial="transfer", widget=forms.RadioSelect
    )
    to_id = WholeNumberField(
        label=_("To account"),
        required=False,
        min_value=1,
        help_text=_("For a transfer."),
        widget=forms.NumberInput({"list": "accounts"}),
    )
    amount = DecimalField(label=_("Amount"), help_text=_("At most two decimals, like 12.50."))
    strategy = forms.ChoiceField(
        label=_("Strategy"), choices=STRATEGIES, initial="pessimistic", widget=forms.RadioSelect
    )

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
        require(request.user, MOVE)
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
            text = _("Done: the balance is %(balance)s, after %(retries)s retries.") % values
            messages.success(request, format_html("{}{}", text, self._other_side(form.cleaned_data)))
        return HttpResponseRedirect(address("admin:orders_account_change", account_id))

    @staticmethod
    def _other_side(data: dict[str, Any]) -> str:
        """A link to the account that received a transfer."""
        if data["operation"] != "transfer":
            return ""
        url = address("admin:orders_account_change", data["to_id"])
        text = _("Account %(id)s") % {"id": data["to_id"]}
        return format_html(' {} → <a href="{}">{}</a>', data["amount"], url, text)

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
            "missing_right": missing(request.user, MOVE),
            "others": Account.objects.exclude(pk=account.pk).select_related("owner").order_by("-id")[:OFFERED],
            "lock_line": lock_line(account),
        }
        return TemplateResponse(request, "admin/orders/account/change_form.html", context, status=status)
