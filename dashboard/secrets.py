"""Encrypt the addresses of channels, which hold passwords and tokens, with a key derived from SECRET_KEY.

The first key encrypts, and those of SECRET_KEY_FALLBACKS decrypt too, so that a secret can be rotated.
"""

import base64
from hashlib import sha256
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from tasks.exceptions import RowlockError

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet


class AddressLocked(RowlockError):
    """The address of a channel cannot be decrypted: SECRET_KEY has changed. Enter the address again."""


def seal(address: str) -> str:
    """The address as it is stored. Raises ImproperlyConfigured without the package cryptography."""
    return _ring().encrypt(address.encode()).decode()


def unseal(token: str) -> str:
    """The stored address in plain. Raises AddressLocked if no key opens it."""
    ring = _ring()
    from cryptography.fernet import InvalidToken  # an optional requirement

    try:
        return ring.decrypt(token.encode()).decode()
    except InvalidToken:
        raise AddressLocked from None


def _ring() -> "MultiFernet":
    try:
        from cryptography.fernet import Fernet, MultiFernet
    except ImportError as error:
        raise ImproperlyConfigured("Channels in the database need a package: `pip install cryptography`.") from error
    return MultiFernet([Fernet(_derived(key)) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)])


def _derived(secret: str | bytes) -> bytes:
    known = secret.encode() if isinstance(secret, str) else secret
    return base64.urlsafe_b64encode(sha256(b"rowlock:alert-address:" + known).digest())
