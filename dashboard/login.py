"""Limits on password guesses, by name and address, and by address over all names (django-axes counts)."""

import logging
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from axes.attempts import get_cool_off_threshold
from axes.handlers.database import AxesDatabaseHandler
from axes.helpers import get_cool_off, get_failure_limit
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.core.exceptions import PermissionDenied
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from tasks.diagnosis.finding import command

logger = logging.getLogger(__name__)

# Against trying one password with many names. High, because everyone in an office may share an address.
FROM_ONE_ADDRESS = 50
LONGEST_NAME = 150  # characters, as in the username column


class LongNameBackend:
    """Refuse names that no account can have before hashing a password; they count as guesses."""

    def authenticate(self, request: HttpRequest | None, username: str | None = None, **credentials: Any) -> None:
        if username and len(username) > LONGEST_NAME:
            raise PermissionDenied


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


UNKNOWN = str(IPv4Address(0))  # a unix socket has no address
PREFIX = 64  # bits: one IPv6 subscriber has all addresses of such a network


def client_address(request: HttpRequest) -> str:
    """The address that guesses are counted by: the one that our outermost proxy saw.

    Entries further left in X-Forwarded-For come from the client and prove nothing.
    """
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")
    count = settings.PROXY_COUNT
    seen = forwarded[-count] if 0 < count <= len(forwarded) else ""
    return normalised(seen.strip()) or normalised(request.META.get("REMOTE_ADDR") or "") or UNKNOWN


def normalised(text: str) -> str:
    """An address as text, IPv6 reduced to its network; empty if it is no address."""
    try:
        address = ip_address(text)
    except ValueError:
        return ""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ip_network((int(address), PREFIX), strict=False).network_address)
    return str(address)


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


def log_logins() -> None:
    """Log every login, logout and refused login; called once, from AppConfig.ready()."""
    user_logged_in.connect(log_login, dispatch_uid="dashboard.login")
    user_logged_out.connect(log_logout, dispatch_uid="dashboard.login")
    user_login_failed.connect(log_failure, dispatch_uid="dashboard.login")


def log_login(request: HttpRequest, user: Any, **_: Any) -> None:
    logger.info("logged in: %r from %s", user.get_username(), client_address(request))


def log_logout(request: HttpRequest, user: Any, **_: Any) -> None:
    if user is not None:
        logger.info("logged out: %r from %s", user.get_username(), client_address(request))


def log_failure(request: HttpRequest | None = None, **_: Any) -> None:
    """Leave the typed name out: sometimes it is a password."""
    logger.warning("login refused, from %s", client_address(request) if request else UNKNOWN)
