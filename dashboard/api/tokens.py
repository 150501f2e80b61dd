"""Tokens of the API: made once, kept as a hash, and narrowed to a group's rights."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.db.models import Model, Q
from django.http import HttpRequest

from dashboard.api import throttle
from dashboard.login import client_address
from dashboard.models import ApiToken
from tasks.support import audit, reading
from tasks.support.audit import Change, Who
from tasks.support.database import execute, fetch, transaction
from tasks.support.durations import StatementTimestamp

VALID = ApiToken.objects.select_related("user").filter(
    Q(expires_at__isnull=True) | Q(expires_at__gt=StatementTimestamp()),
    revoked_at__isnull=True, user__is_active=True, user__is_staff=True,
)  # fmt: skip
PREFIX = "rowlock_"
SHOWN = len(PREFIX) + 6  # characters by which a token is recognised

USED = """
UPDATE dashboard_apitoken SET last_used_at = statement_timestamp()
WHERE id = %(id)s::bigint
  AND (last_used_at IS NULL OR last_used_at < statement_timestamp() - interval '1 minute')
"""
REVOKE = """
UPDATE dashboard_apitoken SET revoked_at = statement_timestamp()
WHERE name = %(name)s::text AND revoked_at IS NULL RETURNING id
"""


@dataclass
class Caller:
    """The user of a token, with those of the user's rights that the token's group has too."""

    user: User
    token: ApiToken
    allowed: frozenset[str] | None = None  # None: all of the user's

    def has_perm(self, right: str, obj: Model | None = None) -> bool:
        """As a user's, narrowed."""
        is_allowed = self.allowed is None or right in self.allowed
        return is_allowed and bool(self.user.has_perm(right, obj))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.user, name)


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def create(name: str, user: User, who: Who, *, group: Group | None = None, lasts: timedelta | None = None) -> str:
    """Make a token and return its secret, which is nowhere else. Raises IntegrityError for a name that exists."""
    secret = PREFIX + secrets.token_urlsafe(32)
    with transaction(connection):
        token = ApiToken.objects.create(
            name=reading.name(name), user=user, group=group, secret_hash=hash_of(secret), shown=secret[:SHOWN],
            expires_at=None if lasts is None else StatementTimestamp() + lasts,
        )  # fmt: skip
        audit.record(connection, who, f"create token user={user.get_username()}", [Change(f"token:{token.name}")])
    return secret


def revoke(name: str, who: Who, *, reason: str = "") -> bool:
    """End a token; False if it is none that is valid."""
    with transaction(connection):
        is_changed = bool(fetch(connection, REVOKE, {"name": name}))
        if is_changed:
            audit.record(connection, who, "revoke token", [Change(f"token:{name}")], reason)
    return is_changed


def caller_of(secret: str, request: HttpRequest) -> Caller | None:
    """The caller of a valid token of an active member of staff; None for a wrong one. Raises TooOften.

    The hash of 256 random bits needs no salt and no slowness. Wrong tokens of an address never keep a valid one out:
    nobody guesses one, and colleagues may share the address.
    """
    # Each request pays for this query, so it is put together once, without the group, and without an order.
    token = next(iter(VALID.filter(secret_hash=hash_of(secret))), None)
    if token is None:
        throttle.failures.count(client_address(request))
        return None
    throttle.requests.count(token.pk)
    execute(connection, USED, {"id": token.pk})
    return Caller(token.user, token, None if token.group_id is None else rights_of(token.group_id))


def rights_of(group_id: int) -> frozenset[str]:
    rights = Permission.objects.filter(group=group_id).values_list("content_type__app_label", "codename")
    return frozenset(f"{app_label}.{codename}" for app_label, codename in rights)
