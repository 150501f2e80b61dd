"""Encrypt secrets that the database keeps: tokens of other installations, for example.

The tokens are Fernet's, with keys derived from SECRET_KEY and SECRET_KEY_FALLBACKS: a dump without them tells nothing.
"""

import base64
from functools import lru_cache
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.crypto import salted_hmac

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

# What every encrypted text looks like, for CHECKs: no secret can be stored in plain.
LOOKS_ENCRYPTED = r"^gAAAA[A-Za-z0-9_=-]{20,}$"


def encrypted(secret: str) -> str:
    """Raises ImproperlyConfigured without the package cryptography."""
    return ring().encrypt(secret.encode()).decode()


def opened(text: str) -> str | None:
    """The secret; None if no key opens it, as after a change of SECRET_KEY without its fallback."""
    keys = ring()
    from cryptography.fernet import InvalidToken  # an optional requirement

    try:
        return keys.decrypt(text.encode()).decode()
    except InvalidToken:
        return None


def ring() -> "MultiFernet":
    return ring_of((settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS))


@lru_cache(maxsize=4)
def ring_of(secrets: tuple[str, ...]) -> "MultiFernet":
    try:
        from cryptography.fernet import Fernet, MultiFernet
    except ImportError as error:
        raise ImproperlyConfigured(
            "Secrets are stored encrypted, which needs the package cryptography: install rowlock[encryption]."
        ) from error
    return MultiFernet([Fernet(key_of(secret)) for secret in secrets])


def key_of(secret: str) -> bytes:
    digest = salted_hmac("dashboard.sealed", "", secret=secret, algorithm="sha256").digest()
    return base64.urlsafe_b64encode(digest)
