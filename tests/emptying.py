"""Empty the tables after a test that commits.

Django's `flush` truncates every table and recreates content types, permissions and groups. That is a quarter of a
second for each of a thousand tests. Few tables have rows then, and the rows from `migrate` are unchanged.
"""

from django.apps import apps
from django.core.management import call_command
from django.db import connection
from psycopg import sql

MADE_BY_MIGRATE = ["auth_group", "auth_group_permissions", "auth_permission", "django_content_type"]

STATE = """
SELECT md5(concat(
    (SELECT string_agg(row::text, '' ORDER BY row.id) FROM auth_group AS row),
    (SELECT string_agg(row::text, '' ORDER BY row.id) FROM auth_group_permissions AS row),
    (SELECT string_agg(row::text, '' ORDER BY row.id) FROM auth_permission AS row),
    (SELECT string_agg(row::text, '' ORDER BY row.id) FROM django_content_type AS row)))
"""

# A truncated table has no pages; a table whose rows were deleted still has some. The archive's rows are in partitions.
WRITTEN = """
SELECT relname FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND (relname = ANY(%s) OR relispartition AND relkind = 'r')
  AND pg_relation_size(oid) > 0
"""

# A failed test may have left a session that holds locks, which could block for ever.
PATIENCE = "SET lock_timeout = '60s'"
AS_BEFORE = "RESET lock_timeout"


class Tables:
    """The tables of the test database, as `migrate` left them."""

    def __init__(self) -> None:
        self.state = self._read_state()

    def empty(self) -> None:
        """Truncate the written tables; flush all, like Django, if a test changed the rows from `migrate`."""
        with connection.cursor() as cursor:
            cursor.execute(PATIENCE)
            self._empty()
            cursor.execute(AS_BEFORE)

    def _empty(self) -> None:
        if self._read_state() != self.state:
            call_command("flush", verbosity=0, interactive=False)
            self.state = self._read_state()
            return
        tables = {model._meta.db_table for model in apps.get_models(include_auto_created=True)}
        with connection.cursor() as cursor:
            cursor.execute(WRITTEN, [list(tables.difference(MADE_BY_MIGRATE))])
            names = [sql.Identifier(name) for (name,) in cursor.fetchall()]
            if names:
                cursor.execute(sql.SQL("TRUNCATE {} CASCADE").format(sql.SQL(", ").join(names)))

    @staticmethod
    def _read_state() -> str:
        with connection.cursor() as cursor:
            cursor.execute(STATE)
            return str(cursor.fetchone()[0])
