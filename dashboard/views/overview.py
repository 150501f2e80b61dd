"""The first page: what needs a person, and how the queues stand."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET


@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    return render(request, "dashboard/overview.html", {**admin.site.each_context(request), "title": _("Overview")})
