"""EMAIL_URL as e-mail settings: `MAILERS` from Django 6.1 on, `EMAIL_*` before."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import environ
from django.core.exceptions import ImproperlyConfigured

from tasks.compat import MAILERS_IN_DJANGO

TIMEOUT_SECONDS = 20.0


def from_environment(env: environ.Env, var_dir: Path) -> dict[str, Any]:
    """The settings for EMAIL_URL, by default files under `var_dir`/mail; EMAIL_TIMEOUT in seconds.

    For an invalid address it exits with one line that repeats no password.
    """
    url = env.str("EMAIL_URL", default="") or f"filemail:///{quote(str(var_dir / 'mail'))}"
    timeout = env.float("EMAIL_TIMEOUT", default=TIMEOUT_SECONDS)
    try:
        return from_url(url, timeout=timeout)
    except (ImproperlyConfigured, ValueError):
        raise SystemExit("EMAIL_URL is not an address for e-mails: write it like smtp://127.0.0.1:1025.") from None


def from_url(url: str, *, timeout: float) -> dict[str, Any]:
    """The settings for one address, such as `smtp+tls://user:password@mail.example.com:587`.

    `timeout`: seconds to wait for a server. Raises ImproperlyConfigured for an unknown scheme.
    """
    parts = environ.Env.email_url_config(url)
    # Our backend distinguishes a refused message from one that may or may not have been sent.
    backend = parts["EMAIL_BACKEND"].replace("django.core.mail.backends.smtp.", "orders.mailer.")
    options = {}
    if parts["EMAIL_BACKEND"].endswith("smtp.EmailBackend"):
        options = {
            "host": parts["EMAIL_HOST"] or "localhost",
            "port": parts["EMAIL_PORT"] or 25,
            "username": parts["EMAIL_HOST_USER"] or "",
            "password": parts["EMAIL_HOST_PASSWORD"] or "",
            "use_tls": parts.get("EMAIL_USE_TLS", False),
            "use_ssl": parts.get("EMAIL_USE_SSL", False),
            "timeout": timeout,
        }
    elif backend.endswith("filebased.EmailBackend"):
        options = {"file_path": parts["EMAIL_FILE_PATH"]}
    return _settings(backend, options)


def _settings(backend: str, options: dict[str, Any]) -> dict[str, Any]:
    if MAILERS_IN_DJANGO:
        return {"MAILERS": {"default": {"BACKEND": backend, "OPTIONS": options}}}
    renamed = {"username": "host_user", "password": "host_password"}  # nosec B105 -- names of settings
    return {
        "EMAIL_BACKEND": backend,
        **{f"EMAIL_{renamed.get(name, name).upper()}": value for name, value in options.items()},
    }
