"""Guesses of passwords: counted by name and address, and over all names by the address alone (django-axes counts)."""

from typing import Any

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.helpers import get_failure_limit
from axes.models import AccessAttempt
from django.db.models import Sum
from django.http import HttpRequest

# For whoever tries one password with many names. Higher by far, as all people of an office may share an address.
FROM_ONE_ADDRESS = 50


class GuessHandler(AxesDatabaseHandler):
    """Locks an address out of every name after FROM_ONE_ADDRESS guesses; AXES_FAILURE_LIMIT is for one name.

    A login forgets the guesses of its own name alone, so that whoever knows one password cannot clear the others.
    """

    def get_failures(self, request: HttpRequest, credentials: dict[str, Any] | None = None) -> int:
        failures: int = super().get_failures(request, credentials)
        if failures_of_address(request) >= FROM_ONE_ADDRESS:
            return max(failures, get_failure_limit(request, credentials))
        return failures


def failures_of_address(request: HttpRequest) -> int:
    """The guesses from this address that still count, whatever their names."""
    address: str = request.axes_ip_address  # type: ignore[attr-defined]
    recent = AccessAttempt.objects.filter(ip_address=address, attempt_time__gte=get_cool_off_threshold(request))
    return recent.aggregate(number=Sum("failures_since_start"))["number"] or 0
