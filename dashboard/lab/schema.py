"""A schema with copies of our tables, in which a run cannot touch a live row.

`CREATE TABLE … LIKE` leaves out triggers, foreign keys and storage options. It also renames indexes, which the code
knows by name. So it makes only columns and checks; the rest is replayed from the catalogue. A session with only this
schema as `search_path` does not see other tables, so it cannot write to them.

Two things would still lead out: a function with a `search_path` of its own, and a default from a live sequence. Both
are redirected to the copies.

The creator's session holds an advisory lock on the schema's name while it is in use. So if the lock is free, the run
has crashed.
"""

import logging
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import psycopg
from django.apps import apps
from django.db import models
from psycopg import sql
from psycopg.rows import DictRow, dict_row

from tasks.exceptions import RowlockError
from tasks.support.installed import is_ours

logger = logging.getLogger(__name__)
APPS = ("tasks", "orders")
PREFIX = "lab_"
NAME = re.compile(r"lab_[0-9a-f]{12}", re.ASCII)

# A foreign key needs the table that it references, and so on.
REFERENCED = """
WITH RECURSIVE needed (oid) AS (
    SELECT to_regclass(quote_ident(name))::oid FROM unnest(%(tables)s::text[]) AS name
    UNION
    SELECT reference.confrelid FROM pg_constraint AS reference JOIN needed ON reference.conrelid = needed.oid
    WHERE reference.contype = 'f'
)
SELECT class.oid, class.relname AS name, space.nspname AS home, class.reloptions AS options
FROM pg_class AS class JOIN needed USING (oid) JOIN pg_namespace AS space ON space.oid = class.relnamespace
ORDER BY class.relname
"""
# All functions of our schema, because they call each other; of other schemas, where apps' tables are, only those that
# triggers there call.
FUNCTIONS = """
SELECT pg_get_functiondef(function.oid) AS definition
FROM pg_proc AS function
WHERE function.prokind = 'f' AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = function.oid AND deptype = 'e')
  AND (function.pronamespace = %(home)s::regnamespace OR function.oid IN
      (SELECT tgfoid FROM pg_trigger WHERE tgrelid = ANY(%(oids)s::oid[]) AND NOT tgisinternal))
ORDER BY function.oid
"""
# Sequences without an owner, and those in the defaults of these tables; identity columns get a copy automatically.
SEQUENCES = """
SELECT DISTINCT sequence.relname AS name FROM pg_class AS sequence
WHERE sequence.relkind = 'S' AND (
    sequence.relnamespace = %(home)s::regnamespace AND NOT EXISTS (
        SELECT FROM pg_depend
        WHERE classid = 'pg_class'::regclass AND objid = sequence.oid AND deptype IN ('a', 'i'))
    OR sequence.oid IN (
        SELECT used.refobjid FROM pg_depend AS used JOIN pg_attrdef AS written ON written.oid = used.objid
        WHERE used.classid = 'pg_attrdef'::regclass AND written.adrelid = ANY(%(oids)s::oid[])))
"""
# Primary and unique keys come before the indexes, and those before the foreign keys that need them.
PARTS = """
SELECT format('ALTER TABLE %%s ALTER COLUMN %%I SET DEFAULT %%s', adrelid::regclass, attname,
    pg_get_expr(adbin, adrelid)) AS definition, 0 AS turn
FROM pg_attrdef JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum
WHERE adrelid = ANY(%(oids)s::oid[]) AND attgenerated = ''
UNION ALL
SELECT format('ALTER TABLE %%s ADD CONSTRAINT %%I %%s', conrelid::regclass, conname, pg_get_constraintdef(oid)),
    CASE contype WHEN 'f' THEN 4 ELSE 1 END
FROM pg_constraint WHERE conrelid = ANY(%(oids)s::oid[]) AND contype IN ('p', 'u', 'x', 'f')
UNION ALL
SELECT pg_get_indexdef(indexrelid), 2 FROM pg_index
WHERE indrelid = ANY(%(oids)s::oid[])
  AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid AND contype IN ('p', 'u', 'x'))
UNION ALL
SELECT pg_get_triggerdef(oid), 3 FROM pg_trigger WHERE tgrelid = ANY(%(oids)s::oid[]) AND NOT tgisinternal
ORDER BY turn, definition
"""
# A copied function keeps the original's path, and would write to the live tables.
PATHS = """
SELECT format('ALTER FUNCTION %%s SET search_path TO %%I', oid::regprocedure, %(name)s::text) AS definition
FROM pg_proc
WHERE pronamespace = %(name)s::text::regnamespace
  AND EXISTS (SELECT FROM unnest(proconfig) AS setting WHERE setting LIKE 'search_path=%%')
"""
COPY = sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES){}")
HOME = "SELECT current_schema() AS name"
QUALIFY = "SELECT set_config('search_path', '', true), set_config('check_function_bodies', 'off', true)"
MARK = "made by the lab of Rowlock for one run"
LEFT_OVER = """
SELECT nspname AS name FROM pg_namespace
WHERE obj_description(oid, 'pg_namespace') = %(mark)s::text AND pg_has_role(nspowner, 'USAGE') ORDER BY oid
"""
IN_USE = "SELECT pg_advisory_lock(hashtext('rowlock:lab:schema'), hashtext(%(name)s::text))"
IS_LEFT = "SELECT pg_try_advisory_lock(hashtext('rowlock:lab:schema'), hashtext(%(name)s::text)) AS is_left"
NOT_IN_USE = "SELECT pg_advisory_unlock(hashtext('rowlock:lab:schema'), hashtext(%(name)s::text))"


class LabRefused(RowlockError):
    """The lab cannot run here; the message says why and what to do."""


def new_name() -> str:
    return PREFIX + secrets.token_hex(6)


def copied_models() -> list[type[models.Model]]:
    """The models whose tables a run copies; tables that they reference are copied as well."""
    installed = [apps.get_app_config(app) for app in APPS if is_ours(app)]
    return [model for config in installed for model in config.get_models() if model._meta.managed]


@contextmanager
def schema(connection: psycopg.Connection, name: str, also: Sequence[type[models.Model]] = ()) -> Iterator[str]:
    """The schema `name` with empty copies of our tables and those of `also`; dropped at the end.

    Raises LabRefused if the role may not create one.
    """
    create(connection, name, also)
    try:
        yield name
    finally:
        drop(connection, name)


def create(connection: psycopg.Connection, name: str, also: Sequence[type[models.Model]] = ()) -> None:
    """Create the schema and its tables in one transaction, and mark it as in use."""
    connection.execute(IN_USE, {"name": name})
    try:
        with connection.transaction():
            _create(connection.cursor(row_factory=dict_row), name, [*copied_models(), *also])
    except psycopg.errors.InsufficientPrivilege as error:
        raise LabRefused(
            "The lab needs a schema of its own, and this database role may not make one: "
            f"GRANT CREATE ON DATABASE {connection.info.dbname} TO {connection.info.user}."
        ) from error


def drop(connection: psycopg.Connection, name: str) -> None:
    """Drop a run's schema and release its lock. Raises ValueError for other names."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the schema of a lab run.")
    connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))
    connection.execute(NOT_IN_USE, {"name": name})


def sweep(connection: psycopg.Connection) -> list[str]:
    """Drop the schemas that crashed runs left, never one in use. Returns their names.

    One that a process of its run still holds is left for the next sweep.
    """
    dropped = []
    for (name,) in connection.execute(LEFT_OVER, {"mark": MARK}).fetchall():
        if not NAME.fullmatch(name) or connection.execute(IS_LEFT, {"name": name}).fetchall() != [(True,)]:
            continue
        try:
            drop(connection, name)
            dropped.append(name)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as error:
            logger.info("the schema %s of a crashed run is left for later: %s", name, error)
            connection.execute(NOT_IN_USE, {"name": name})
    return dropped


def _create(cursor: psycopg.Cursor[DictRow], name: str, wanted: Sequence[type[models.Model]]) -> None:
    home = cursor.execute(HOME).fetchone()["name"]  # type: ignore[index]
    found = _tables(cursor, home, {model._meta.db_table for model in wanted})
    params = {"home": home, "oids": [table["oid"] for table in found]}
    cursor.execute(QUALIFY)  # from here on the catalogue qualifies every name
    sequences = cursor.execute(SEQUENCES, params).fetchall()
    definitions = [row["definition"] for part in (FUNCTIONS, PARTS) for row in cursor.execute(part, params).fetchall()]
    cursor.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    cursor.execute(sql.SQL("COMMENT ON SCHEMA {} IS {}").format(sql.Identifier(name), MARK))
    for sequence in sequences:
        cursor.execute(sql.SQL("CREATE SEQUENCE {}").format(sql.Identifier(name, sequence["name"])))
    for table in found:
        pair = sql.Identifier(name, table["name"]), sql.Identifier(table["home"], table["name"])
        # Storage options as the catalogue has them, such as `fillfactor=90`; SQL uses the same form.
        options = sql.SQL(f" WITH ({', '.join(table['options'])})" if table["options"] else "")
        cursor.execute(COPY.format(*pair, options))
    for definition in definitions:
        cursor.execute(moved(definition, {home, *(table["home"] for table in found)}, name))
    for row in cursor.execute(PATHS, {"name": name}).fetchall():
        cursor.execute(row["definition"])


def _tables(cursor: psycopg.Cursor[DictRow], home: str, names: set[str]) -> list[DictRow]:
    """These tables as the session sees them, and all that they reference."""
    found = cursor.execute(REFERENCED, {"tables": sorted(names)}).fetchall()
    there = [table["name"] for table in found]
    if missing := names - set(there):
        raise LabRefused(f"The schema {home} lacks {', '.join(sorted(missing))}: run `manage.py migrate`.")
    if twice := {name for name in there if there.count(name) > 1}:
        raise LabRefused(
            f"Two schemas have a table {', '.join(sorted(twice))}, and a run has room for one of each name."
        )
    return found


def moved(definition: str, homes: Iterable[str], name: str) -> bytes:
    """The definition with all names of the schemas `homes` moved to schema `name`.

    >>> moved('CREATE TRIGGER t ON public.a EXECUTE FUNCTION public.f()', ['public'], 'lab_1')
    b'CREATE TRIGGER t ON lab_1.a EXECUTE FUNCTION lab_1.f()'
    """
    known = "|".join(re.escape(home) for home in homes)
    return re.sub(rf'(?<![\w."])"?({known})"?\.', f"{name}.", definition).encode()
