"""Limits on password guesses, by name and address, and by address over all names (django-axes counts)."""

from typing import Any

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.helpers import get_cool_off, get_failure_limit
from axes.models import AccessAttempt
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from dashboard.login import LONGEST_NAME, client_address
from tasks.diagnosis.finding import command

# Against trying one password with many names. High, because everyone in an office may share an address.
FROM_ONE_ADDRESS = 50


def counted_name(request: HttpRequest, credentials: dict[str, Any] | None = None) -> str | None:
    """The name under which a guess is counted, cut to the column's length."""
    name = credentials.get("username") if credentials else request.POST.get("username")
    return name and name[:LONGEST_NAME]


class GuessHandler(AxesDatabaseHandler):
    """Lock an address out of all names after FROM_ONE_ADDRESS guesses; AXES_FAILURE_LIMIT is for one name.

    A login clears only the guesses of its own name, so that knowing one password does not reset the others.
    """

    def get_failures(self, request: HttpRequest, credentials: dict[str, Any] | None = None) -> int:
        failures: int = super().get_failures(request, credentials)
        if failures_of_address(request) >= FROM_ONE_ADDRESS:
            return max(failures, get_failure_limit(request, credentials))
        return failures


def failures_of_address(request: HttpRequest) -> int:
    """Guesses from this address that still count, over all names."""
    address: str = request.axes_ip_address  # type: ignore[attr-defined]
    recent = AccessAttempt.objects.filter(ip_address=address, attempt_time__gte=get_cool_off_threshold(request))
    return recent.aggregate(number=Sum("failures_since_start"))["number"] or 0


def locked_out(
    request: HttpRequest, response: HttpResponse | None = None, credentials: dict[str, Any] | None = None
) -> HttpResponse:
    """Answer 429 with the waiting time and, for a locked address, the command that unlocks it."""
    seconds = int(cool_off.total_seconds()) if (cool_off := get_cool_off(request)) else 0
    is_address = failures_of_address(request) >= FROM_ONE_ADDRESS
    context = {
        "limit": FROM_ONE_ADDRESS if is_address else get_failure_limit(request, credentials),
        "minutes": -(-seconds // 60),
        "command": command("axes_reset_ip", client_address(request)) if is_address else "",
    }
    page = render(request, "admin/locked_out.html", context, status=429)
    page.headers["Retry-After"] = str(seconds)
    return page
