"""Audit: who did what to which row, when and why."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import audit_trail
from dashboard.audit_trail import AuditFilter
from tasks.admin.listing import Listing, Place
from tasks.admin.rights import require
from tasks.filters import InvalidFilter

SEE = "tasks.view_intervention"


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [path("ops/audit/", view(audit), name="ops_audit")]


@require_safe
def audit(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only the part that refreshes itself."""
    require(request.user, SEE)
    context = {**admin.site.each_context(request), "title": _("Audit"), "recent": audit_trail.recent()}
    try:
        chosen, place = AuditFilter.from_params(request.GET), Place.from_params(request.GET)
    except InvalidFilter as error:
        context |= {"fault": str(error), "chosen": AuditFilter()}
        return render(request, "dashboard/audit.html", context, status=400)
    template = "dashboard/_audit.html" if request.headers.get("HX-Request") else "dashboard/audit.html"
    return render(request, template, {**context, **entries(chosen, place)})


def entries(chosen: AuditFilter, place: Place) -> dict[str, Any]:
    """One page of the interventions. Only what is found quickly refreshes itself."""
    listing = audit_trail.look(chosen, place)
    return {
        "chosen": chosen,
        "listing": listing,
        "entries": listing.tasks,
        "links": links(chosen, listing),
        "now": audit_trail.now(),
        "is_live": place == Place() and (chosen.is_empty or bool(chosen.target)),
    }


def links(chosen: AuditFilter, listing: Listing) -> dict[str, str]:
    """The queries of the newest, the newer and the older page, with the filter in them; empty where there is none."""
    params = chosen.as_params()
    return {
        "newest": "?" + urlencode(params),
        "newer": "?" + urlencode([*params, ("after", listing.newer)]) if listing.newer else "",
        "older": "?" + urlencode([*params, ("before", listing.older)]) if listing.older else "",
    }
