"""The queue's settings: OPTIONS of its backend in TASKS, then the dictionary `ROWLOCK`, then environment variables."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured


class Setting(NamedTuple):
    """One key of `ROWLOCK`: its environment variable, a parser for it, and the default."""

    variable: str
    parse: Callable[[str], Any]
    default: Any


def names(text: str) -> list[str]:
    """The parts of a comma-separated list, stripped."""
    return [part.strip() for part in text.split(",") if part.strip()]


def flag(text: str) -> bool:
    """Parse yes or no from an environment variable. Raises ValueError for anything else."""
    words = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}
    if text.strip().lower() not in words:
        raise ValueError(text)
    return words[text.strip().lower()]


SECRET_NAMES = [
    "password", "passwd", "secret", "token", "api_key", "authorization", "pwd", "passphrase", "passcode", "private_key",
    "access_key", "credential", "cookie",
]  # fmt: skip
SETTINGS = {
    "DIRECT_DATABASE_URL": Setting("DIRECT_DATABASE_URL", str, ""),
    "LEASE_SECONDS": Setting("ROWLOCK_LEASE_SECONDS", float, 30.0),
    "SWEEP_SECONDS": Setting("ROWLOCK_SWEEP_SECONDS", float, 1.0),
    "MAX_ATTEMPTS": Setting("ROWLOCK_MAX_ATTEMPTS", int, 5),
    "REDACT": Setting("ROWLOCK_REDACT", names, SECRET_NAMES),
    "GRACE_SECONDS": Setting("ROWLOCK_GRACE_SECONDS", float, 20.0),
    "REDIS_URL": Setting("REDIS_URL", str, ""),
    "LOCK_BACKEND": Setting("ROWLOCK_LOCK_BACKEND", str, "lease"),
    "BURST": Setting("ROWLOCK_BURST", flag, None),  # None: same as ROWLOCK_LAB
    "RELAXED_COMMIT": Setting("ROWLOCK_RELAXED_COMMIT", flag, False),
    "MAX_ARGUMENT_BYTES": Setting("ROWLOCK_MAX_ARGUMENT_BYTES", int, 1_000_000),
    "RELEASE": Setting("ROWLOCK_RELEASE", str, ""),
    "TRACE_URL": Setting("ROWLOCK_TRACE_URL", str, ""),  # with {trace_id}
    "PAYLOAD_KEYS": Setting("ROWLOCK_PAYLOAD_KEYS", names, []),  # newest first
}


BACKEND = "tasks.backend.PostgresBackend"


def places() -> Iterator[Mapping[str, Any]]:
    """The dictionaries in Django's settings that may have a key, the first one wins."""
    for backend in getattr(settings, "TASKS", {}).values():
        if backend.get("BACKEND") == BACKEND:
            yield backend.get("OPTIONS", {})
    yield getattr(settings, "ROWLOCK", {})


def is_configured(key: str) -> bool:
    """True if Django's settings have this key."""
    return any(key in place for place in places())


def get(key: str) -> Any:
    """The value of `key` in TASKS or ROWLOCK, else in its environment variable, else its default.

    Raises ImproperlyConfigured if the variable cannot be parsed.
    """
    setting = SETTINGS[key]
    for place in places():
        if key in place:
            return place[key]
    text = os.environ.get(setting.variable, "")
    if not text:
        return setting.default
    try:
        return setting.parse(text)
    except ValueError as error:
        raise ImproperlyConfigured(
            f"{setting.variable}={text!r} is not a valid {setting.parse.__name__}: set it like "
            f"{setting.variable}={setting.default}."
        ) from error
