"""The page *Alerts*: the channels of alerts, and the thresholds of "Needs attention"; for superusers."""

from collections.abc import Callable
from typing import Any, NamedTuple

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST, require_safe

from dashboard.attention import thresholds
from dashboard.attention.thresholds import DEFAULTS, parser, written
from dashboard.layout import page
from dashboard.live import snapshots
from dashboard.models import RANGES
from dashboard.numbers import decimal
from dashboard.templatetags.rowlock import age
from dashboard.views import alert_channels as channels
from dashboard.views.alert_channels import CONFIGURE, PAGE
from tasks.admin import rights
from tasks.admin.forms import OptionField, PreviewedForm
from tasks.diagnosis.finding import command
from tasks.support import durations
from tasks.support.addresses import address
from tasks.support.reading import Unreadable


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/alerts/", view(alerts), name="ops_alerts"),
        path("ops/alerts/threshold/", view(change_threshold), name="ops_threshold"),
        *channels.paths(view),
    ]


@require_safe
def alerts(request: HttpRequest) -> HttpResponse:
    rights.require(request.user, CONFIGURE)
    return page(
        request,
        "alerts/list.html",
        _("Alerts"),
        {
            "thresholds": threshold_rows(request),
            "channels": channels.rows(request),
        },
    )


class ThresholdRow(NamedTuple):
    """One threshold in texts; `actor` and `since` are empty while it has its default."""

    name: str
    label: str
    usual: str
    value: str
    actor: str
    since: SafeString | str


def threshold_rows(request: HttpRequest) -> list[ThresholdRow]:
    found, now = thresholds.stored(), snapshots.of(request).now
    return [
        ThresholdRow(
            name,
            str(default.label),
            shown(name, default.value),
            shown(name, found[name].value if name in found else default.value),
            found[name].actor if name in found else "",
            age(found[name].at, now) if name in found else "",
        )
        for name, default in DEFAULTS.items()
    ]


def shown(name: str, value: int) -> str:
    """The value with its unit, in words."""
    if name.endswith("_seconds"):
        return durations.spoken(value)
    unit = {"percent": " %", "megabytes": " MB"}.get(name.rpartition("_")[2], "")
    return f"{decimal(value)}{unit}"


class ThresholdForm(PreviewedForm):
    """A threshold's value; an empty field gives it its default again."""

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        widget = forms.TextInput({"autofocus": True})
        self.fields["value"] = OptionField(parser(name), label=gettext_lazy("Value"), widget=widget)


@require_POST
def change_threshold(request: HttpRequest) -> HttpResponse:
    """First ask for the value, then set it."""
    rights.require(request.user, CONFIGURE)
    name = request.POST.get("name", "")
    if name not in DEFAULTS:
        raise Unreadable(_("There is no such threshold."))
    label, (least, greatest) = str(DEFAULTS[name].label), RANGES[name]
    present = thresholds.stored().get(name)
    initial = {"value": written(name, present.value) if present else ""}
    form = ThresholdForm(name, request.POST if "confirmed" in request.POST else None, initial=initial)
    if not form.is_valid():
        context = {
            "form": form,
            "name": name,
            "label": label,
            "usual": written(name, DEFAULTS[name].value),
            "least": written(name, least),
            "greatest": written(name, greatest),
            "command": command("configure_threshold", name, written(name, present.value) if present else "default"),
            "back": address(PAGE),
        }
        return page(
            request, "alerts/threshold.html", _("Change a threshold"), context, status=400 if form.errors else 200
        )
    value, reason = form.cleaned_data["value"], form.cleaned_data["reason"]
    changed = thresholds.change(name, value, rights.who(request.user), reason=reason)
    messages.success(request, _("The threshold was changed.") if changed else _("The threshold was like that already."))
    snapshots.forget()
    return HttpResponseRedirect(address(PAGE))
