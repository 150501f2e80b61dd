"""Database settings: DATABASE_URL, or else this checkout's embedded server, and the session's name and limits."""

import contextlib
import os
import secrets
import tempfile
import warnings
from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured

COMMANDS_WITHOUT_DATABASE = {"check", "collectstatic", "help", "makemigrations", "up", "version"}
# Django's dummy backend: makemigrations asks it nothing, and everything else fails instead of using a wrong database.
NO_DATABASE = {"ENGINE": "django.db.backends.dummy"}
APPLICATION_NAMES = {"run_worker": "rowlock:worker", "up": "rowlock:up", "direct_demo": "rowlock:demo:director"}
# Given at connect, so that every query of a page has them, even the login's, without a transaction around it. JIT is
# off because no statement of a page runs long enough: compiling made a count take 27 ms instead of 12.
PAGE_SESSION = "-c statement_timeout=5s -c lock_timeout=2s -c idle_in_transaction_session_timeout=30s -c jit=off"
TCP_KEEPALIVE = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 15_000}


def from_environment(env: environ.Env, var_dir: Path, argv: list[str]) -> dict[str, Any]:
    """Django's settings of the one database; exits with one line if there is none and the command needs one."""
    url = env.str("DATABASE_URL", default="") or embedded_url(var_dir)
    if not url:
        if needs_database(argv):
            raise SystemExit(
                "No PostgreSQL: DATABASE_URL is not set and this checkout's embedded server is not running. "
                "Start it with `make run`, or set DATABASE_URL."
            )
        return NO_DATABASE
    database = parsed(env, url)
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


def parsed(env: environ.Env, url: str) -> dict[str, Any]:
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


def embedded_url(var_dir: Path) -> str | None:
    """The URL of this checkout's embedded server, or None if it is not running."""
    from dashboard import embedded

    return embedded.running_url(var_dir)


def needs_database(argv: list[str]) -> bool:
    """True if this command line needs the database; a server without `manage.py` does."""
    if not argv or Path(argv[0]).name != "manage.py":
        return True
    command = argv[1] if len(argv) > 1 else "help"
    return not (command.startswith("-") or command in COMMANDS_WITHOUT_DATABASE or {"--help", "-h"} & set(argv))


def application_name(argv: list[str]) -> str:
    """The session's name: `rowlock:web`, `rowlock:cmd:<command>`, or the own name of a long-running command."""
    if len(argv) > 1 and Path(argv[0]).name == "manage.py":
        return APPLICATION_NAMES.get(argv[1], f"rowlock:cmd:{argv[1]}")[:63]
    return "rowlock:web"


def session_limits(env: environ.Env, argv: list[str]) -> str:
    """Options that limit a session of the pages; empty for commands, and behind a transaction-pooling proxy.

    Such a proxy refuses options, so the limits are set on the role, with ALTER ROLE … SET.
    """
    return PAGE_SESSION if application_name(argv) == "rowlock:web" and not is_pooled(env) else ""


def is_pooled(env: environ.Env) -> bool:
    """True if DATABASE_URL goes through a transaction-pooling proxy: DIRECT_DATABASE_URL is set as well."""
    return bool(env.str("DIRECT_DATABASE_URL", default=""))


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
