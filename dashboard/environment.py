"""Settings from the environment: the database with its sessions' names and limits, and e-mail."""

import contextlib
import os
import secrets
import tempfile
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

import environ
from django.core.exceptions import ImproperlyConfigured

from tasks.compat import MAILERS_IN_DJANGO
from tasks.support.database import session_name

COMMANDS_WITHOUT_DATABASE = {"check", "collectstatic", "help", "makemigrations", "up", "version"}
# Django's dummy backend: makemigrations asks it nothing, and everything else fails instead of using a wrong database.
NO_DATABASE = {"ENGINE": "django.db.backends.dummy"}
LONG_RUNNING = {"run_worker": ("worker", ""), "up": ("up", ""), "direct_demo": ("demo", "director")}
# Given at connect, so that every query of a page has them, even the login's, without a transaction around it. JIT is
# off because no statement of a page runs long enough: compiling made a count take 27 ms instead of 12.
PAGE_SESSION = "-c statement_timeout=5s -c lock_timeout=2s -c idle_in_transaction_session_timeout=30s -c jit=off"
LOG_FORMATS = ("text", "json")
TCP_KEEPALIVE = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 15_000}


def database_settings(env: environ.Env, var_dir: Path, argv: list[str]) -> dict[str, Any]:
    """Django's settings of the one database; exits with one line if there is none and the command needs one."""
    url: str | None = env.str("DATABASE_URL", default="")
    if not url:
        from dashboard import embedded  # only this checkout needs it

        url = embedded.running_url(var_dir)
    if not url:
        if needs_database(argv):
            raise SystemExit(
                "No PostgreSQL: DATABASE_URL is not set and this checkout's embedded server is not running. "
                "Start it with `make run`, or set DATABASE_URL."
            )
        return NO_DATABASE
    database = parsed_database_url(env, url)
    # django-environ leaves a socket's directory in OPTIONS, where `dbshell` does not look.
    database["HOST"] = database.setdefault("OPTIONS", {}).pop("host", database["HOST"])
    # PostgreSQL takes the last of repeated options, so DATABASE_URL can extend or override these limits.
    options = " ".join(filter(None, (session_limits(env, argv), database["OPTIONS"].pop("options", ""))))
    database["OPTIONS"] = {
        **({"options": options} if options else {}),
        "connect_timeout": 10,
        "application_name": application_name(argv),
        "server_side_binding": True,
        **TCP_KEEPALIVE,
        **database["OPTIONS"],
    }
    database.update(CONN_MAX_AGE=60, CONN_HEALTH_CHECKS=True)
    if is_pooled(env):  # A cursor that outlives its transaction would reach another session.
        database["DISABLE_SERVER_SIDE_CURSORS"] = True
    return database


def parsed_database_url(env: environ.Env, url: str) -> dict[str, Any]:
    """Parse the URL into Django's settings; if it is invalid, exit with one line that repeats no password."""
    database: dict[str, Any] = {}
    with warnings.catch_warnings(), contextlib.suppress(ValueError, ImproperlyConfigured):
        warnings.simplefilter("ignore")  # the warning repeats the URL with its password
        database = env.db_url_config(url)
    if database.get("ENGINE") != "django.db.backends.postgresql" or not database.get("NAME"):
        raise SystemExit(
            "DATABASE_URL is not the address of a PostgreSQL database: write postgres://USER:PASSWORD@HOST:5432/NAME, "
            "with special characters of the password percent-encoded."
        )
    return database


def needs_database(argv: list[str]) -> bool:
    """True if this command line needs the database; a server without `manage.py` does."""
    if not argv or Path(argv[0]).name != "manage.py":
        return True
    command = argv[1] if len(argv) > 1 else "help"
    return not (command.startswith("-") or command in COMMANDS_WITHOUT_DATABASE or {"--help", "-h"} & set(argv))


def application_name(argv: list[str]) -> str:
    """The session's name: `rowlock:web`, `rowlock:cmd:<command>`, or the own name of a long-running command."""
    if len(argv) > 1 and Path(argv[0]).name == "manage.py":
        return session_name(*LONG_RUNNING.get(argv[1], ("cmd", argv[1])))
    return session_name("web")


def session_limits(env: environ.Env, argv: list[str]) -> str:
    """Options that limit a session of the pages; empty for commands, and behind a transaction-pooling proxy.

    Such a proxy refuses options, so the limits are set on the role, with ALTER ROLE … SET.
    """
    return PAGE_SESSION if application_name(argv) == session_name("web") and not is_pooled(env) else ""


def is_pooled(env: environ.Env) -> bool:
    """True if DATABASE_URL goes through a transaction-pooling proxy: DIRECT_DATABASE_URL is set as well."""
    return bool(env.str("DIRECT_DATABASE_URL", default=""))


def log_format(env: environ.Env) -> str:
    """The setting ROWLOCK_LOG_FORMAT, `text` or `json`; exits with one line for anything else."""
    wanted: str = env.str("ROWLOCK_LOG_FORMAT", default="") or LOG_FORMATS[0]
    if wanted not in LOG_FORMATS:
        raise SystemExit(
            f"ROWLOCK_LOG_FORMAT={wanted!r} is no format of log lines: set it to {' or '.join(LOG_FORMATS)}."
        )
    return wanted


def generated_secret(path: Path) -> str:
    """Read the secret in `path`, created atomically on first use and readable by this user alone."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, fresh = tempfile.mkstemp(dir=path.parent)
        with open(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(50))
        # The first of several processes wins: unlike rename, link replaces nothing.
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
        os.unlink(fresh)
    return path.read_text()


EMAIL_TIMEOUT_SECONDS = 20.0


def mail_settings(env: environ.Env, var_dir: Path) -> dict[str, Any]:
    """The settings for EMAIL_URL, by default files under `var_dir`/mail; EMAIL_TIMEOUT in seconds.

    For an invalid address it exits with one line that repeats no password.
    """
    url = env.str("EMAIL_URL", default="") or f"filemail:///{quote(str(var_dir / 'mail'))}"
    timeout = env.float("EMAIL_TIMEOUT", default=EMAIL_TIMEOUT_SECONDS)
    try:
        return mail_settings_of_url(url, timeout=timeout)
    except (ImproperlyConfigured, ValueError):
        raise SystemExit("EMAIL_URL is not an address for e-mails: write it like smtp://127.0.0.1:1025.") from None


def mail_settings_of_url(url: str, *, timeout: float) -> dict[str, Any]:
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
    if MAILERS_IN_DJANGO:
        return {"MAILERS": {"default": {"BACKEND": backend, "OPTIONS": options}}}
    renamed = {"username": "host_user", "password": "host_password"}  # nosec B105 -- names of settings
    return {
        "EMAIL_BACKEND": backend,
        **{f"EMAIL_{renamed.get(name, name).upper()}": value for name, value in options.items()},
    }
