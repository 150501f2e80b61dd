"""Which PostgreSQL to use, and under which name: DATABASE_URL, or else this checkout's embedded server."""

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
# Django's own stand-in: makemigrations asks it nothing, and whatever else does gets an error, not somebody's database.
NO_DATABASE = {"ENGINE": "django.db.backends.dummy"}
APPLICATION_NAMES = {"run_worker": "rowlock:worker", "up": "rowlock:up", "direct_demo": "rowlock:demo:director"}
# Given when connecting, so that no query of a page escapes them, not even the login's, and no transaction has to be
# opened around an action for their sake. A server that compiles what looks dear took 27 ms for the counts of 100,000
# ready tasks, which take 12: no statement of a page runs for long enough.
PAGE_SESSION = "-c statement_timeout=5s -c lock_timeout=2s -c idle_in_transaction_session_timeout=30s -c jit=off"
TCP_KEEPALIVE = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 15_000}


def from_environment(env: environ.Env, var_dir: Path, argv: list[str]) -> dict[str, Any]:
    """Django's settings of the one database; exits with one line when there is none and the command needs it."""
    url = env.str("DATABASE_URL", default="") or embedded_url(var_dir)
    if not url:
        if needs_database(argv):
            raise SystemExit(
                "No PostgreSQL: DATABASE_URL is not set and this checkout's embedded server is not running. "
                "Start it with `make run`, or set DATABASE_URL."
            )
        return NO_DATABASE
    database = parsed(env, url)
    # django-environ leaves a socket's folder among the options, where `dbshell` does not look.
    database["HOST"] = database.setdefault("OPTIONS", {}).pop("host", database["HOST"])
    # Of an option that is given twice PostgreSQL takes the last: the address may add to the limits, or change them.
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
    if is_pooled(env):  # a cursor that outlives its transaction would be looked for in another session
        database["DISABLE_SERVER_SIDE_CURSORS"] = True
    return database


def parsed(env: environ.Env, url: str) -> dict[str, Any]:
    """The address as Django's settings; exits with one line, which does not repeat a password, for any other text."""
    database: dict[str, Any] = {}
    with warnings.catch_warnings(), contextlib.suppress(ValueError, ImproperlyConfigured):
        warnings.simplefilter("ignore")  # it repeats the address, password and all
        database = env.db_url_config(url)
    if database.get("ENGINE") != "django.db.backends.postgresql" or not database.get("NAME"):
        raise SystemExit(
            "DATABASE_URL is not the address of a PostgreSQL database: write postgres://USER:PASSWORD@HOST:5432/NAME, "
            "with special characters of the password percent-encoded."
        )
    return database


def embedded_url(var_dir: Path) -> str | None:
    """Where this checkout's embedded server listens, or None when it does not run."""
    from dashboard import embedded

    return embedded.running_url(var_dir)


def needs_database(argv: list[str]) -> bool:
    """Whether this `manage.py` command line (or a server without one) works on the database."""
    if not argv or Path(argv[0]).name != "manage.py":
        return True
    command = argv[1] if len(argv) > 1 else "help"
    return not (command.startswith("-") or command in COMMANDS_WITHOUT_DATABASE or {"--help", "-h"} & set(argv))


def application_name(argv: list[str]) -> str:
    """What `pg_stat_activity` shows of this process: `rowlock:web`, or `rowlock:cmd:<command>`."""
    if len(argv) > 1 and Path(argv[0]).name == "manage.py":
        return APPLICATION_NAMES.get(argv[1], f"rowlock:cmd:{argv[1]}")[:63]
    return "rowlock:web"


def session_limits(env: environ.Env, argv: list[str]) -> str:
    """The limits of a session that serves pages; a transaction-pooling proxy refuses such options.

    DIRECT_DATABASE_URL tells that there is one: then the limits are set on the role, with ALTER ROLE … SET.
    """
    return PAGE_SESSION if application_name(argv) == "rowlock:web" and not is_pooled(env) else ""


def is_pooled(env: environ.Env) -> bool:
    """Whether DATABASE_URL leads through a transaction-pooling proxy: a direct way is named beside it."""
    return bool(env.str("DIRECT_DATABASE_URL", default=""))


def generated_secret(path: Path) -> str:
    """The secret kept in `path`, made there at the first call; readable by this user alone, and never half written."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, fresh = tempfile.mkstemp(dir=path.parent)
        with open(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(50))
        # The first of several processes wins: unlike a rename, a link replaces nothing.
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
        os.unlink(fresh)
    return path.read_text()
