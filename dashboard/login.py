"""Logins: their addresses, their log, and names that no account can have."""

import logging
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from dashboard import conf

logger = logging.getLogger(__name__)

LONGEST_NAME = 150  # characters, as in the username column


class LongNameBackend:
    """Refuse names that no account can have before hashing a password; they count as guesses."""

    def authenticate(self, request: HttpRequest | None, username: str | None = None, **credentials: Any) -> None:
        if username and len(username) > LONGEST_NAME:
            raise PermissionDenied


UNKNOWN = str(IPv4Address(0))  # a unix socket has no address
PREFIX = 64  # bits: one IPv6 subscriber has all addresses of such a network


def client_address(request: HttpRequest) -> str:
    """The address that guesses are counted by: the one that our outermost proxy saw.

    Entries further left in X-Forwarded-For come from the client and prove nothing.
    """
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")
    count = conf.get("PROXY_COUNT")
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
