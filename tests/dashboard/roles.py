"""Database roles that may do less than the tests' own."""

import contextlib
import os
from collections.abc import Iterator

import psycopg
from django.db import connection

from tests.dashboard.scenes import Scene

PASSWORD = "correct horse"


@contextlib.contextmanager
def role(*grants: str) -> Iterator[str]:
    """A role that may log in and use our tables; it has these grants and goes with the block."""
    name = f"rowlock_test_{os.getpid()}_{len(grants)}"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP ROLE IF EXISTS {name}")
        cursor.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
        cursor.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}")
        cursor.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {name}")
        for grant in grants:
            cursor.execute(f"GRANT {grant} TO {name}")
        try:
            yield name
        finally:
            cursor.execute("RESET ROLE")
            cursor.execute(f"DROP OWNED BY {name}")
            cursor.execute(f"DROP ROLE {name}")


@contextlib.contextmanager
def acting_as(name: str) -> Iterator[None]:
    """The dashboard's own connection as this role."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET ROLE {name}")
        try:
            yield
        finally:
            cursor.execute("RESET ROLE")


def opened_as(scene: Scene, name: str, application_name: str) -> psycopg.Connection:
    """A session of this role in the scene."""
    conn = scene.opened(application_name, user=name, password=PASSWORD)
    conn.execute("SELECT 1")
    return conn
