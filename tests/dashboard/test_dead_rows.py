"""Pages beside pruned rows that an open transaction keeps: their index entries stay, at the front."""

from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from dashboard import series
from tasks.operations import search
from tasks.queue import presence
from tests import databases
from tests.databases import QueueDatabase
from tests.people import client_of
from tests.tasks.plans import explain
from tests.tasks.worker_app import tasks as handlers

DELETED = 5000
NOW = {"until": "2100-01-01T00:00Z", "since": "2000-01-01T00:00Z", "is_past": False, "sample": 10, "most": 10}
WALK = "SELECT min(id) FROM tasks_task"
# How often each may pass them.
ASKED = {
    "where a list begins": (search.HIGHEST, {}, 0),
    "where the tasks of a week ago end": (search.CREATED_ID, {"highest": 10**4, "age": timedelta(days=7)}, 1),
    "finished tasks by function": (series.BY_TASK, NOW, 0),
}


@pytest.fixture
def operator():
    return client_of("Operators")


@pytest.fixture(scope="module")
def pruned(template_url):
    with databases.copy_of(template_url) as database, closing(psycopg.connect(database.url)) as forgotten:
        forgotten.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        database.fill(handlers.quick, DELETED)
        forgotten.execute("SELECT count(*) FROM tasks_queue")
        database.rows("DELETE FROM tasks_task")
        database.fill(handlers.quick, 10)
        yield database


@pytest.mark.parametrize("name", ASKED)
def test_they_are_passed_at_most_once(pruned, name):
    statement, params, times = ASKED[name]
    assert buffers(pruned, statement, params) < (times + 0.5) * buffers(pruned, WALK, {})


def buffers(database: QueueDatabase, statement: str, params: Mapping[str, Any]) -> int:
    """How many pages of tables and indexes a statement looks at."""
    node = explain(database.connection, statement, params).node
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/admin/ops/workers/", "/admin/ops/stale/"])
def test_pages_do_not_ask_at_once_again_who_holds_rows_if_that_was_slow(monkeypatch, operator, path):
    asked = []
    for slow_seconds, times in ((60, 2), (-1, 1)):
        monkeypatch.setattr(presence, "SLOW_SECONDS", slow_seconds)
        monkeypatch.setattr(presence, "shown_ids", presence.KnownIds())
        monkeypatch.setattr(presence, "TIMES_AS_LONG", 1e9)
        asked.clear()
        with connection.execute_wrapper(lambda execute, sql, *rest: asked.append(sql) or execute(sql, *rest)):
            assert [operator.get(path).status_code for _ in range(2)] == [200, 200]
        assert asked.count(presence.KNOWN_IDS) == times
