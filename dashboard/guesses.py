"""Guesses of passwords: counted by name and address, and over all names by the address alone (django-axes counts)."""

from typing import Any

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.helpers import get_failure_limit
from axes.models import AccessAttempt
from django.core.exceptions import PermissionDenied
from django.db.models import Sum
from django.http import HttpRequest

# For whoever tries one password with many names. Higher by far, as all people of an office may share an address.
FROM_ONE_ADDRESS = 50
LONGEST_NAME = 150  # characters, as the column of accounts


class LongNameBackend:
    """Refuses names that no account can have, before a password is hashed for them; they count as guesses."""

    def authenticate(self, request: HttpRequest | None, username: str | None = None, **credentials: Any) -> None:
        if username and len(username) > LONGEST_NAME:
            raise PermissionDenied


def counted_name(request: HttpRequest, credentials: dict[str, Any] | None = None) -> str | None:
    """The name that a guess is counted under, short enough for its column."""
    name = credentials.get("username") if credentials else request.POST.get("username")
    return name and name[:LONGEST_NAME]


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
