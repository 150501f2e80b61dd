"""Workers."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from tasks.admin.rights import require

SEE = "tasks.view_worker"


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [path("ops/workers/", view(workers), name="ops_workers")]


@require_GET
def workers(request: HttpRequest) -> HttpResponse:
    require(request.user, SEE)
    return render(request, "dashboard/workers.html", {**admin.site.each_context(request), "title": _("Workers")})
