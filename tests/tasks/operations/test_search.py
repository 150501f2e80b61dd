"""A search of a large table reads little before it begins."""

from contextlib import closing

import psycopg

from tasks.operations.search import HIGHEST
from tests.tasks.plans import explain
from tests.tasks.worker_app import tasks as handlers

DELETED = 5000


def test_pruned_rows_that_a_transaction_keeps_cost_a_search_nothing(database):
    """As many index entries stay, at the front; a page of the list was cut off while it passed them."""
    database.fill(handlers.quick, DELETED)
    with closing(psycopg.connect(database.url)) as forgotten:
        forgotten.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        forgotten.execute("SELECT count(*) FROM tasks_queue")
        database.rows("DELETE FROM tasks_task")
        database.fill(handlers.quick, 10)
        assert explain(database.connection, HIGHEST, {}).node["Shared Hit Blocks"] < DELETED / 100
