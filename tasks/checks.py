"""System checks of the queue's configuration.

The server's version needs no check here: Django itself refuses a server that is too old.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connection
from django.db.migrations.loader import MigrationLoader
from psycopg.conninfo import conninfo_to_dict

from tasks import conf
from tasks.compat import task_backends
from tasks.exceptions import PooledSession
from tasks.framework import payload
from tasks.locking.named import backends
from tasks.support import tracing
from tasks.support.database import fetch, own_session
from tasks.support.installed import is_ours

NEEDED_APPS = ("dashboard", "tasks")
OUR_APPS = (*NEEDED_APPS, "orders")  # a project may have orders of its own instead
POOLER_PORT = "6432"
MOST_ATTEMPTS = 1000
# Their storage parameters are set by tasks/migrations/0003_guards.py; an operator may have tuned the values.
SCALE = "autovacuum_vacuum_scale_factor"
TUNED = (
    ("tasks_task", SCALE), ("tasks_task", "vacuum_index_cleanup"), ("tasks_task", "fillfactor"),
    ("tasks_attempt", "autovacuum_vacuum_insert_scale_factor"), ("tasks_progress", SCALE), ("tasks_throughput", SCALE),
    ("tasks_bucket", SCALE), ("tasks_worker", SCALE), ("tasks_schedule", SCALE),
)  # fmt: skip
VACUUM = """
SELECT class.relname::text AS name,
    bool_and(current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean) AS runs,
    bool_and(coalesce((
        SELECT bool_or(option_name = wanted.option)
            AND bool_and(CASE WHEN option_name = 'autovacuum_enabled' THEN option_value::boolean ELSE true END)
        FROM pg_options_to_table(class.reloptions)), false)) AS is_tuned
FROM pg_class AS class JOIN unnest(%(tables)s::text[], %(options)s::text[]) AS wanted (name, option)
    ON class.oid = to_regclass(wanted.name)
GROUP BY class.relname ORDER BY class.relname
"""
ABOVE_ZERO = ("LEASE_SECONDS", "SWEEP_SECONDS", "MAX_ATTEMPTS", "MAX_ARGUMENT_BYTES")


def check_backend(alias: str, options: Mapping[str, Any]) -> list[CheckMessage]:
    """Check one backend in TASKS, its database and its settings, without a query."""
    return [*_options(alias, options), *_database(), *_direct_url(), *_settings(), *_lock_backend(), *_app_names()]


def check_backends(**kwargs: Any) -> list[CheckMessage]:
    """Check every backend, in the place of the backport's own app."""
    return [message for backend in task_backends.all() for message in backend.check()]


def _options(alias: str, options: Mapping[str, Any]) -> Iterator[CheckMessage]:
    for name in sorted(set(options) - set(conf.SETTINGS) - {"DATABASE"}):
        hint = f"Correct TASKS[{alias!r}]['OPTIONS']; its keys are DATABASE, {', '.join(sorted(conf.SETTINGS))}."
        yield Error(f"PostgresBackend has no option {name!r}.", hint=hint, id="rowlock.E001")
    for name in sorted(set(options) & set(conf.SETTINGS)):
        if conf.get(name) != options[name]:
            hint = "The queue is one, however many aliases lead to it: keep the option in one of them."
            yield Error(f"Another alias of TASKS sets the option {name!r} too.", hint=hint, id="rowlock.E010")
    if options.get("DATABASE", DEFAULT_DB_ALIAS) != DEFAULT_DB_ALIAS:
        yield Error(
            f"The queue cannot live in DATABASES[{options['DATABASE']!r}]: a task is enqueued, and a row locked, in "
            "the same transaction as your own rows, which is the one of the alias 'default'.",
            hint=f"Remove DATABASE from TASKS[{alias!r}]['OPTIONS'], and make the PostgreSQL with the rows that tasks "
            "are about the alias 'default'. Other databases may have other aliases.",
            id="rowlock.E009",
        )


def _database() -> Iterator[CheckMessage]:
    # Without a database Django uses a stand-in ("unknown"), which reports the problem itself.
    if connection.vendor not in ("postgresql", "unknown"):
        yield Error(
            f"The tasks are kept in PostgreSQL, but DATABASES['default'] is {connection.vendor}.",
            hint="Set DATABASE_URL to a PostgreSQL 14 or newer.",
            id="rowlock.E002",
        )
    if not settings.USE_TZ:
        yield Error(
            "USE_TZ is off: Django then reads times without their zone, which cannot be compared with the database's.",
            hint="Set USE_TZ = True, as `django-admin startproject` does.",
            id="rowlock.E011",
        )


def _direct_url() -> Iterator[CheckMessage]:
    database = connection.settings_dict
    url = conf.get("DIRECT_DATABASE_URL")
    if not url:
        if _seems_pooled():
            yield Warning(
                "DATABASE_URL seems to lead through a pooling proxy, and DIRECT_DATABASE_URL is not set.",
                hint="Workers refuse to start on a session that is not their own. Set DIRECT_DATABASE_URL to the same "
                "database past the proxy.",
                id="rowlock.W001",
            )
        return
    try:
        name = conninfo_to_dict(url).get("dbname")
    except psycopg.ProgrammingError as error:
        yield Error(
            f"DIRECT_DATABASE_URL cannot be read: {str(error).strip()}.",
            hint="Write it like postgres://user:password@host:5432/name.",
            id="rowlock.E003",
        )
        return
    if name != database.get("NAME"):
        yield Error(
            f"DIRECT_DATABASE_URL leads to the database {name!r}, DATABASE_URL to {database.get('NAME')!r}.",
            hint="Presence locks and notifications are seen only within one database: name the same one.",
            id="rowlock.E004",
        )


def _seems_pooled() -> bool:
    database = connection.settings_dict
    return str(database.get("PORT")) == POOLER_PORT or bool(database.get("DISABLE_SERVER_SIDE_CURSORS"))


def _settings() -> Iterator[CheckMessage]:
    for key in sorted(set(getattr(settings, "ROWLOCK", {})) - set(conf.SETTINGS)):
        known = ", ".join(sorted(conf.SETTINGS))
        yield Warning(f"ROWLOCK has no key {key!r}.", hint=f"Its keys are {known}.", id="rowlock.W002")
    for key, setting in conf.SETTINGS.items():
        problem = ""
        try:
            value = conf.get(key)
        except ImproperlyConfigured as error:
            problem = str(error)
        else:
            if key in ABOVE_ZERO and not (isinstance(value, (int, float)) and value > 0):
                problem = f"{key} is {value!r}, not a number above 0."
            elif key == "MAX_ATTEMPTS" and (not isinstance(value, int) or value > MOST_ATTEMPTS):
                problem = f"MAX_ATTEMPTS is {value!r}, not a whole number from 1 to {MOST_ATTEMPTS}."
            elif key == "PAYLOAD_KEYS":
                problem = payload.problem()
            elif key == "TRACE_URL":
                problem = tracing.problem_of(value)
        if problem:
            hint = f"Correct the option {key!r} in TASKS, ROWLOCK[{key!r}] or {setting.variable}."
            yield Error(problem, hint=hint, id="rowlock.E005")


def _lock_backend() -> Iterator[CheckMessage]:
    backend = conf.get("LOCK_BACKEND")
    if problem := backends.problem_of(backend):
        yield Error(
            problem,
            hint="Set ROWLOCK_LOCK_BACKEND to 'lease', 'advisory', or with REDIS_URL 'redis'.",
            id="rowlock.E007",
        )
    if backend == backends.ADVISORY and not conf.get("DIRECT_DATABASE_URL") and _seems_pooled():
        yield Error(
            "Advisory locks belong to a database session, and DATABASE_URL seems to lead through a pooling proxy.",
            hint="Set DIRECT_DATABASE_URL to the same database past the proxy, or ROWLOCK_LOCK_BACKEND to 'lease'.",
            id="rowlock.E008",
        )


def _app_names() -> Iterator[CheckMessage]:
    for label in NEEDED_APPS:
        if apps.is_installed(label) and not is_ours(label):
            yield Error(
                f"The installed app {label!r} is not Rowlock's: {apps.get_app_config(label).path}.",
                hint="Two packages have this name, and the first on the import path wins. Run Rowlock beside the "
                "other project, in a checkout of its own on the same database.",
                id="rowlock.E006",
            )


@register(Tags.database)
def check_proxy(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that workers get their own session; this asks the database, so only with `--database default`."""
    if "default" not in (databases or ()):
        return []
    try:
        own_session("rowlock:check").close()
    except PooledSession:
        way = "DIRECT_DATABASE_URL" if conf.get("DIRECT_DATABASE_URL") else "DATABASE_URL"
        return [
            Warning(
                f"{way} leads through a transaction-pooling proxy: workers refuse to start.",
                hint="Set DIRECT_DATABASE_URL to the same database past the proxy.",
                id="rowlock.W004",
            )
        ]
    return []


@register(Tags.database)
def check_migrations(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Warn if another project's app of the same name has migrated this schema: our tables may never be created."""
    if "default" not in (databases or ()):
        return []
    loader = MigrationLoader(connection)
    strangers = [
        f"{label}.{name}"
        for label, name in loader.applied_migrations
        if label in OUR_APPS and is_ours(label) and (label, name) not in loader.disk_migrations
    ]
    if not strangers:
        return []
    return [
        Warning(
            f"This database has migrations that Rowlock does not know: {', '.join(sorted(strangers)[:5])}.",
            hint="Either a newer Rowlock has run here, or another project has an app of this name: then give Rowlock "
            "a schema of its own with ?options=-csearch_path%3Drowlock in DATABASE_URL.",
            id="rowlock.W003",
        )
    ]


@register(Tags.database)
def check_vacuum(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Warn if VACUUM comes too rarely, or tables lack our storage parameters: claims then grow slow."""
    if "default" not in (databases or ()):
        return []
    names, options = map(list, zip(*TUNED, strict=True))
    tables = fetch(connection, VACUUM, {"tables": names, "options": options})
    untuned = [table["name"] for table in tables if not table["is_tuned"]]
    if tables and not tables[0]["runs"]:
        text, hint = "Autovacuum is off on this server.", "Set autovacuum = on and track_counts = on."
    elif untuned:
        text = f"Tables lack the storage parameters that keep claims fast: {', '.join(untuned)}."
        hint = "The migration ran before it set them, they are gone, or autovacuum_enabled is off: set them with "
        hint += "ALTER TABLE … SET (…), as tasks/migrations/0003_guards.py does."
    else:
        return []
    return [Warning(text, hint=hint, id="rowlock.W011")]
