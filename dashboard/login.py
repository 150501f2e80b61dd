"""Client addresses, the page for locked-out people, and log lines for logins (django-axes counts guesses)."""

import logging
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from axes.helpers import get_cool_off, get_failure_limit
from django.conf import settings
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from tasks.verdicts.words import command

logger = logging.getLogger(__name__)
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
    from dashboard import guesses  # it has models, which are not loaded when this module is first imported

    seconds = int(cool_off.total_seconds()) if (cool_off := get_cool_off(request)) else 0
    is_address = guesses.failures_of_address(request) >= guesses.FROM_ONE_ADDRESS
    context = {
        "limit": guesses.FROM_ONE_ADDRESS if is_address else get_failure_limit(request, credentials),
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
    logger.info("logged in: %r from %s", user.get_username(), address_of(request))


def log_logout(request: HttpRequest, user: Any, **_: Any) -> None:
    if user is not None:
        logger.info("logged out: %r from %s", user.get_username(), address_of(request))


def log_failure(request: HttpRequest | None = None, **_: Any) -> None:
    """Leave the typed name out: sometimes it is a password."""
    logger.warning("login refused, from %s", address_of(request))


def address_of(request: HttpRequest | None) -> str:
    return client_address(request) if request is not None else UNKNOWN
