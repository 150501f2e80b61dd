"""A schema with copies of our tables, in which a run cannot touch a live row.

`CREATE TABLE … LIKE` leaves out triggers, foreign keys and storage options, and it renames indexes, by whose names the
code knows its own constraints. So it makes only the columns and checks, and the rest is replayed from the catalogue.
Whoever connects with this schema alone as `search_path` cannot write to a table that was not copied: it is not there.
"""

import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psycopg
from django.apps import apps
from django.db import models
from psycopg import sql
from psycopg.rows import dict_row

from tasks.exceptions import RowlockError

APPS = ("tasks", "orders")
PREFIX = "lab_"
NAME = re.compile(r"lab_[0-9a-f]{12}", re.ASCII)
MISSING_RIGHT = "42501"

# A foreign key needs the table that it points to, and that table those of its own.
REFERENCED = """
WITH RECURSIVE needed (oid) AS (
    SELECT class.oid FROM pg_class AS class
    WHERE class.relnamespace = current_schema()::regnamespace AND class.relname = ANY(%(tables)s::text[])
    UNION
    SELECT reference.confrelid FROM pg_constraint AS reference JOIN needed ON reference.conrelid = needed.oid
    WHERE reference.contype = 'f'
)
SELECT class.oid, class.relname AS name, class.reloptions AS options
FROM pg_class AS class JOIN needed USING (oid) ORDER BY class.relname
"""
FUNCTIONS = """
SELECT pg_get_functiondef(function.oid) AS definition
FROM pg_proc AS function JOIN pg_type AS result ON result.oid = function.prorettype
WHERE function.pronamespace = %(home)s::regnamespace AND function.prokind = 'f'
  AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = function.oid AND deptype = 'e')
ORDER BY function.oid
"""
# Primary and unique keys before the indexes, those before the foreign keys, which need them.
PARTS = """
SELECT format('ALTER TABLE %%s ADD CONSTRAINT %%I %%s', conrelid::regclass, conname, pg_get_constraintdef(oid))
    AS definition, CASE contype WHEN 'f' THEN 4 ELSE 1 END AS turn
FROM pg_constraint WHERE conrelid = ANY(%(oids)s::oid[]) AND contype IN ('p', 'u', 'x', 'f')
UNION ALL
SELECT pg_get_indexdef(indexrelid), 2 FROM pg_index
WHERE indrelid = ANY(%(oids)s::oid[])
  AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid AND contype IN ('p', 'u', 'x'))
UNION ALL
SELECT pg_get_triggerdef(oid), 3 FROM pg_trigger WHERE tgrelid = ANY(%(oids)s::oid[]) AND NOT tgisinternal
ORDER BY turn, definition
"""
COPY = sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES){}")
HOME = "SELECT current_schema() AS name"
QUALIFY = "SELECT set_config('search_path', '', true), set_config('check_function_bodies', 'off', true)"
LEFT_OVER = """
SELECT nspname AS name FROM pg_namespace
WHERE nspname LIKE 'lab\\_%%' AND nspname <> ALL(%(kept)s::text[])
"""


class LabRefused(RowlockError):
    """The lab cannot run here; the message says why and what to do."""


def new_name() -> str:
    return PREFIX + secrets.token_hex(6)


def copied_models() -> list[type[models.Model]]:
    """The models whose tables a run has copies of; what they refer to is copied beside."""
    return [model for app in APPS for model in apps.get_app_config(app).get_models() if model._meta.managed]


@contextmanager
def schema(connection: psycopg.Connection, name: str) -> Iterator[str]:
    """The schema `name` with empty copies of our tables; dropped at the end. Raises LabRefused without the right."""
    create(connection, name)
    try:
        yield name
    finally:
        drop(connection, name)


def create(connection: psycopg.Connection, name: str) -> None:
    """Make the schema and its tables in one transaction: either all of it is there, or none."""
    try:
        with connection.transaction():
            _create(connection, name)
    except psycopg.errors.InsufficientPrivilege as error:
        raise LabRefused(
            "The lab needs a schema of its own, and this database role may not make one: "
            f"GRANT CREATE ON DATABASE {connection.info.dbname} TO {connection.info.user}."
        ) from error


def drop(connection: psycopg.Connection, name: str) -> None:
    """Remove a run's schema; other names are refused."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the schema of a lab run.")
    connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


def sweep(connection: psycopg.Connection, kept: Iterable[str] = ()) -> list[str]:
    """Drop the schemas that crashed runs have left; those of `kept` are running."""
    cursor = connection.cursor(row_factory=dict_row).execute(LEFT_OVER, {"kept": list(kept)})
    names = [row["name"] for row in cursor.fetchall() if NAME.fullmatch(row["name"])]
    for name in names:
        drop(connection, name)
    return names


def _create(connection: psycopg.Connection, name: str) -> None:
    cursor = connection.cursor(row_factory=dict_row)
    home = cursor.execute(HOME).fetchone()["name"]  # type: ignore[index]
    tables = [model._meta.db_table for model in copied_models()]
    found = cursor.execute(REFERENCED, {"tables": tables}).fetchall()
    if missing := set(tables) - {table["name"] for table in found}:
        raise LabRefused(f"The schema {home} lacks {', '.join(sorted(missing))}: run `manage.py migrate`.")
    cursor.execute(QUALIFY)  # from here on the catalogue names everything with its schema
    functions = cursor.execute(FUNCTIONS, {"home": home}).fetchall()
    parts = cursor.execute(PARTS, {"oids": [table["oid"] for table in found]}).fetchall()
    cursor.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    for table in found:
        copy = sql.Identifier(name, table["name"]), sql.Identifier(home, table["name"]), _options(table["options"])
        cursor.execute(COPY.format(*copy))
    for definition in [row["definition"] for row in (*functions, *parts)]:
        cursor.execute(moved(definition, home, name))


def _options(options: list[str] | None) -> sql.Composable:
    """Storage options as the catalogue has them: `fillfactor=90` and the like, which is also how they are written."""
    return sql.SQL(f" WITH ({', '.join(options)})") if options else sql.SQL("")


def moved(definition: str, home: str, name: str) -> bytes:
    """The definition with every name of the schema `home` turned into one of `name`.

    >>> moved('CREATE TRIGGER t ON public.a EXECUTE FUNCTION public.f()', 'public', 'lab_1')
    b'CREATE TRIGGER t ON lab_1.a EXECUTE FUNCTION lab_1.f()'
    """
    return re.sub(rf'(?<![\w."])"?{re.escape(home)}"?\.', f"{name}.", definition).encode()
