"""The rows that patterns work on: SQL that makes them, disturbs them, and checks them at the end."""

from dataclasses import dataclass

FILL_ORDERS = """
INSERT INTO orders_order (customer_email, placed_at, shipped_at)
SELECT 'c' || n || '@example.test', '2026-01-01', '2026-01-02' FROM generate_series(1, %(items)s) AS n
"""
FILL_TASKS = """
INSERT INTO tasks_task (task_path, queue_name, max_attempts)
SELECT 'dashboard.lab.work', 'lab', 100 FROM generate_series(1, %(items)s)
"""
FILL_ACCOUNTS = """
WITH owner AS (
    INSERT INTO auth_user
        (username, password, is_superuser, is_staff, is_active, first_name, last_name, email, date_joined)
    VALUES ('lab', '!', false, false, true, '', '', '', now()) RETURNING id
)
INSERT INTO orders_account (owner) SELECT id FROM owner WHERE %(items)s > 0
"""

# An outside locker's work on the same rows: it locks one, and changes a column that no pattern means to write.
TOUCH_ORDER = """
UPDATE orders_order SET placed_at = placed_at + interval '1 second'
WHERE id = (SELECT id FROM orders_order ORDER BY random() LIMIT 1 FOR NO KEY UPDATE) RETURNING id
"""
TOUCH_TASK = """
UPDATE tasks_task SET kwargs = jsonb_build_object('touched', coalesce((kwargs ->> 'touched')::int, 0) + 1)
WHERE id = (SELECT id FROM tasks_task ORDER BY random() LIMIT 1 FOR NO KEY UPDATE) RETURNING id
"""
TOUCH_ACCOUNT = """
UPDATE orders_account SET balance = balance + 1 WHERE id = (SELECT min(id) FROM orders_account) RETURNING id
"""

ORDERS_DONE = "SELECT id FROM orders_order WHERE shipped_email_sent"
TASKS_DONE = "SELECT id FROM tasks_task WHERE status = 'COMPLETED'"
OPERATIONS_DONE = "SELECT DISTINCT item AS id FROM lab_ledger WHERE kind = 'effect'"

# The acknowledged writes that are really there.
SECONDS_KEPT = (
    "SELECT coalesce(sum(extract(epoch FROM placed_at - '2026-01-01'::timestamptz)), 0)::int FROM orders_order"
)
TOUCHES_KEPT = "SELECT coalesce(sum((kwargs ->> 'touched')::int), 0)::int FROM tasks_task"
BALANCE_KEPT = "SELECT sum(balance)::int FROM orders_account"
TOUCHES_TOLD = "SELECT count(*)::int FROM lab_ledger WHERE kind = 'touch'"
DEPOSITS_TOLD = "SELECT count(*)::int FROM lab_ledger WHERE kind IN ('effect', 'touch')"


@dataclass(frozen=True)
class Subject:
    """One kind of rows; every field is SQL for the lab's schema.

    Args:
        fill: makes `%(items)s` rows.
        touch: the change of an outside locker to one row.
        done: ids of the rows that are done according to the database.
        told, kept: the number of acknowledged changes, and of those that are there at the end.
    """

    fill: str
    touch: str
    done: str
    told: str
    kept: str


SUBJECTS = {
    "orders": Subject(FILL_ORDERS, TOUCH_ORDER, ORDERS_DONE, TOUCHES_TOLD, SECONDS_KEPT),
    "tasks": Subject(FILL_TASKS, TOUCH_TASK, TASKS_DONE, TOUCHES_TOLD, TOUCHES_KEPT),
    "accounts": Subject(FILL_ACCOUNTS, TOUCH_ACCOUNT, OPERATIONS_DONE, DEPOSITS_TOLD, BALANCE_KEPT),
}
