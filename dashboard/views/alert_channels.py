"""The channels of the page *Alerts*: list, add, edit, delete. Addresses are written and never shown again."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from django import forms
from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.alerts import channels, delivery, editing
from dashboard.alerts.channels import Channel
from dashboard.alerts.delivery import AlertNotSent
from dashboard.alerts.editing import Values
from dashboard.layout import page
from dashboard.live import snapshots
from dashboard.models import AlertChannel
from dashboard.secrets import AddressLocked
from dashboard.templatetags.rowlock import age
from tasks.admin import rights
from tasks.admin.forms import OptionField, PreviewedForm, reason_of
from tasks.commands import types
from tasks.diagnosis.finding import command
from tasks.panels import Severity
from tasks.support import reading
from tasks.support.addresses import address

CONFIGURE = "dashboard.configure_alerts"  # no group has it
PAGE = "admin:ops_alerts"
LONGEST_ADDRESS = 2000
SEVERITIES = [
    (Severity.STOPPED.value, gettext_lazy("critical alone")),
    (Severity.LOSING.value, gettext_lazy("critical, and what waits for a person")),
    (Severity.SLOW.value, gettext_lazy("all but notices")),
    (Severity.NOTICE.value, gettext_lazy("all")),
]


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/alerts/add/", view(edit), name="ops_channel_add"),
        path("ops/alerts/<int:pk>/", view(edit), name="ops_channel"),
        path("ops/alerts/<int:pk>/delete/", view(delete), name="ops_channel_delete"),
        path("ops/alerts/<int:pk>/test/", view(send_test), name="ops_channel_test"),
    ]


class ChannelRow(NamedTuple):
    """One channel in texts; `scheme` is the only part of its address that is shown.

    `pk` is None for a channel of ROWLOCK_ALERT_URLS, which nobody edits here.
    """

    pk: int | None
    name: str
    scheme: str
    severity: str
    queues: str
    kinds: str
    enabled: bool
    sent: SafeString | str
    failed: SafeString | str
    failure: str
    command: str


def since(at: datetime | None, now: datetime) -> str:
    """Its age; a moment that is younger than the look at the database is just now."""
    return age(min(at, now), now) if at else ""


def rows(request: HttpRequest) -> list[ChannelRow]:
    """The stored channels by name, then those of ROWLOCK_ALERT_URLS."""
    now, severities = snapshots.of(request).now, dict(SEVERITIES)
    stored = [
        ChannelRow(
            channel.pk,
            channel.name,
            scheme_of(channel),
            str(severities[channel.least_severity]),
            ", ".join(channel.queues) or _("all"),
            ", ".join(channel.kinds) or _("all"),
            channel.enabled,
            since(channel.sent_at, now),
            since(channel.failed_at, now),
            channel.failure,
            command("test_alert", channel.name),
        )
        for channel in AlertChannel.objects.order_by("name")
    ]
    usual, every = str(severities[Severity.SLOW.value]), _("all")
    return stored + [
        ChannelRow(
            None, one.name, one.address.partition("://")[0], usual, every, every, True, "", "", "",
            command("test_alert", one.name),
        )
        for one in channels.channels()
        if one.stored is None
    ]  # fmt: skip


def scheme_of(channel: AlertChannel) -> str:
    """The scheme of its address; a question mark if no key opens it."""
    try:
        return channel.address.partition("://")[0]
    except (AddressLocked, ImproperlyConfigured):
        return "?"


class NamesField(OptionField):
    """Names, separated by commas, as a list."""

    def clean(self, value: Any) -> list[str]:
        parts = [part.strip() for part in str(value or "").split(",")]
        return [name for part in parts if part for name in [super(NamesField, self).clean(part)]]

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(value) if isinstance(value, list) else value


class ChannelForm(PreviewedForm):
    """A channel as a person writes it. The address is never filled in; an empty one keeps what is stored."""

    name = OptionField(types.name, label=gettext_lazy("Name"), required=True, max_length=reading.LONGEST_NAME)
    address = forms.CharField(
        label=gettext_lazy("Address"),
        max_length=LONGEST_ADDRESS,
        widget=forms.PasswordInput({"autocomplete": "new-password", "spellcheck": "false"}),
    )
    least_severity = forms.TypedChoiceField(label=gettext_lazy("Severity"), choices=SEVERITIES, coerce=int)
    queues = NamesField(types.name, label=gettext_lazy("Queues"))
    kinds = NamesField(types.name, label=gettext_lazy("Kinds"))
    enabled = forms.BooleanField(label=gettext_lazy("Enabled"), required=False)

    def __init__(self, channel: AlertChannel, *args: Any, **kwargs: Any) -> None:
        names = ("name", "least_severity", "queues", "kinds", "enabled")
        super().__init__(*args, initial={name: getattr(channel, name) for name in names}, **kwargs)
        self.fields["address"].required = channel.pk is None

    def clean_address(self) -> str:
        written: str = self.cleaned_data["address"]
        if written and (not written.partition("://")[2] or reading.storage_problem(written)):
            raise forms.ValidationError(_("Write an address with its scheme, such as https:// or mailto://."))
        return written


@require_http_methods(["GET", "HEAD", "POST"])
@sensitive_post_parameters("address")
def edit(request: HttpRequest, pk: int | None = None) -> HttpResponse:
    """The form of a new channel, or of this one; a post stores it."""
    rights.require(request.user, CONFIGURE)
    channel = AlertChannel() if pk is None else get_object_or_404(AlertChannel, pk=pk)
    is_post = request.method == "POST"
    form = ChannelForm(channel, request.POST if is_post else None)
    if is_post and form.is_valid() and (answer := stored(request, channel, form)):
        return answer
    context = {
        "form": form,
        "channel": channel,
        "pk": pk,
        "scheme": scheme_of(channel) if pk is not None else "",
        "back": address(PAGE),
        "command": command("test_alert", channel.name) if pk is not None else "",
    }
    title = _("Add a channel") if pk is None else _("Edit a channel")
    return page(request, "alerts/channel.html", title, context, status=400 if form.errors else 200)


def stored(request: HttpRequest, channel: AlertChannel, form: ChannelForm) -> HttpResponse | None:
    """Store what the form says and go back; None with the form's error if that cannot be."""
    values = dict(form.cleaned_data)
    reason = values.pop("reason")
    try:
        changed = editing.save(channel, Values(**values), rights.who(request.user), reason=reason)
    except IntegrityError:
        form.add_error("name", _("Another channel has this name."))
        return None
    except ImproperlyConfigured as error:
        form.add_error("address", str(error))
        return None
    messages.success(request, _("The channel was saved.") if changed else _("The channel was like that already."))
    return HttpResponseRedirect(address(PAGE))


@require_POST
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete the channel after a question."""
    rights.require(request.user, CONFIGURE)
    channel = get_object_or_404(AlertChannel, pk=pk)
    if "confirmed" not in request.POST:
        shell = command("test_alert", channel.name)
        context = {"channel": channel, "pk": pk, "back": address(PAGE), "command": shell}
        return page(request, "alerts/delete.html", _("Delete a channel"), context)
    editing.delete(channel, rights.who(request.user), reason=reason_of(request.POST))
    messages.success(request, _("The channel was deleted."))
    return HttpResponseRedirect(address(PAGE))


@require_POST
def send_test(request: HttpRequest, pk: int) -> HttpResponse:
    """Send a test message at once, also to a disabled channel, and say how it went."""
    rights.require(request.user, CONFIGURE)
    channel = get_object_or_404(AlertChannel, pk=pk)
    editing.record_test(channel, rights.who(request.user))
    try:
        delivery.send(Channel(channel.name, channel), delivery.test_message())
    except AlertNotSent as problem:
        messages.error(request, str(problem))
    else:
        messages.success(request, _("The channel %(name)s took the test message.") % {"name": channel.name})
    return HttpResponseRedirect(address(PAGE))
