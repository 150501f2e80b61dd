"""Find the row that a session waits for, from the position in its tuple lock.

The first waiter for a row holds its tuple lock and waits for the holder's transaction; the others wait for the tuple
lock. Either names table, page and line pointer, and reading that position gives the key. If an uncommitted UPDATE has
put a new version elsewhere, the waiters still wait at the old position.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.db import models
from psycopg import sql

from dashboard.locks.sessions import RowRef
from tasks.database import Connection, fetch

KEYS = "SELECT ctid::text AS place, {key} AS id FROM {table} WHERE ctid = ANY(%(places)s::text[]::tid[])"


def rows_waited_for(connection: Connection, locks: Iterable[dict[str, Any]]) -> dict[int, RowRef]:
    """The row for each session with a tuple lock, granted or not, on a model's table; one statement per table."""
    places: dict[type[models.Model], dict[int, str]] = defaultdict(dict)
    known = {model._meta.db_table: model for model in apps.get_models()}
    for lock in locks:
        if lock["locktype"] == "tuple" and lock["relation"] in known:
            places[known[lock["relation"]]][lock["pid"]] = f"({lock['page']},{lock['tuple']})"
    return {
        pid: RowRef(model, ids[place])
        for model, by_pid in places.items()
        for ids in [_keys(connection, model, by_pid.values())]
        for pid, place in by_pid.items()
        if place in ids
    }


def _keys(connection: Connection, model: type[models.Model], places: Iterable[str]) -> dict[str, Any]:
    key = model._meta.pk
    names = {"table": sql.Identifier(model._meta.db_table), "key": sql.Identifier(key.column or key.attname)}
    statement = sql.SQL(KEYS).format(**names).as_string()
    return {row["place"]: row["id"] for row in fetch(connection, statement, {"places": sorted(set(places))})}
