"""Check the tables and columns that others' scripts use: a rename here would break them."""

import pytest
from django.db import connection

COLUMNS = {
    "tasks_task": "id task_path queue_name priority args kwargs status version created_at run_after started_at "
    "finished_at attempt max_attempts claimed_by ordering_key return_value",
    "tasks_queue": "name paused recovery",
    "tasks_attempt": "task_id number worker_id outcome exception_class traceback started_at finished_at",
    "tasks_worker": "id hostname pid started_at heartbeat_at stopped_at current_task_id",
    "tasks_refusedwrite": "task_id worker_id expected_version actual_version at",
    "tasks_lock": "name owner fence acquired_at expires_at",
    "tasks_commandrun": "name argv started_at finished_at exit_status outcome",
    "tasks_intervention": "at actor source action target reason version_before version_after",
    "tasks_schedule": "name task_path args kwargs queue_name priority cron every_seconds timezone missed overlap "
    "paused next_at last_at version",
    "orders_order": "id customer_email placed_at shipped_at shipped_email_sent email_state version",
    "orders_account": "id owner balance version",
    "orders_entry": "account_id amount",
}


@pytest.mark.django_db
@pytest.mark.parametrize("table", COLUMNS)
def test_the_columns_are_there(table):
    with connection.cursor() as cursor:
        there = {column.name for column in connection.introspection.get_table_description(cursor, table)}
    assert set(COLUMNS[table].split()) <= there
