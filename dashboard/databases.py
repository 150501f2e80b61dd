"""Which PostgreSQL to use, and under which name: DATABASE_URL, or else this checkout's embedded server."""

import secrets
from pathlib import Path
from typing import Any

import environ

COMMANDS_WITHOUT_DATABASE = {"check", "collectstatic", "help", "makemigrations", "up", "version"}
APPLICATION_NAMES = {"run_worker": "rowlock:worker", "up": "rowlock:up"}
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
        url = "postgres:///rowlock"
    database = env.db_url_config(url)
    database["OPTIONS"] = {
        "connect_timeout": 10,
        "application_name": application_name(argv),
        "server_side_binding": True,
        **TCP_KEEPALIVE,
        **database.get("OPTIONS", {}),
    }
    database.update(CONN_MAX_AGE=60, CONN_HEALTH_CHECKS=True)
    return database


def embedded_url(var_dir: Path) -> str | None:
    """Where this checkout's embedded server listens, or None when it does not run."""
    from dashboard import embedded

    return embedded.running_url(var_dir)


def needs_database(argv: list[str]) -> bool:
    """Whether this `manage.py` command line (or a server without one) works on the database."""
    if not argv or Path(argv[0]).name != "manage.py":
        return True
    return len(argv) > 1 and argv[1] not in COMMANDS_WITHOUT_DATABASE and not {"--help", "-h"} & set(argv)


def application_name(argv: list[str]) -> str:
    """What `pg_stat_activity` shows of this process: `rowlock:web`, or `rowlock:cmd:<command>`."""
    if len(argv) > 1 and Path(argv[0]).name == "manage.py":
        return APPLICATION_NAMES.get(argv[1], f"rowlock:cmd:{argv[1]}")[:63]
    return "rowlock:web"


def generated_secret(path: Path) -> str:
    """The secret kept in `path`, made there at the first call; readable by this user alone."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(50))
    return path.read_text()
