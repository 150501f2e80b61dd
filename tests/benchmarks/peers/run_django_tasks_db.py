"""django-tasks-db: its own worker command, looking for work every 50 ms; the verbs of `subject.py`."""

import os
import sys
import time
import types

import django
from django.conf import settings
from django.core.management import call_command

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["PGDATABASE"],
            "USER": os.environ["PGUSER"],
            "HOST": os.environ["PGHOST"],
            "CONN_MAX_AGE": None,
        }
    },
    INSTALLED_APPS=["django_tasks", "django_tasks_db"],
    TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
    USE_TZ=True,
)
django.setup()

import wire  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django_tasks import task  # noqa: E402

FILL = """
INSERT INTO django_tasks_db_dbtaskresult (id, status, enqueued_at, args_kwargs, priority, task_path, worker_ids,
    queue_name, backend_name, run_after, exception_class_path, traceback)
SELECT gen_random_uuid(), 'READY', now(), jsonb_build_object('args', jsonb_build_array(n), 'kwargs', '{}'::jsonb), 0,
    %s, '[]', 'default', 'default', '9999-01-01', '', '' FROM generate_series(1, %s) AS n
"""
UPDATE = "UPDATE counter SET n = n + 1 WHERE id = %s"
INSERT = "INSERT INTO entry (counter_id) VALUES (%s)"


def noop(number: int) -> None:
    wire.count()


def update(number: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(UPDATE, [number])
    wire.count()


def write(number: int) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(INSERT, [number])
        cursor.execute(UPDATE, [number])
    wire.count()


def pause(number: int, milliseconds: int = 0) -> None:
    began = time.monotonic()
    if milliseconds:
        time.sleep(milliseconds / 1000)
    wire.ran(number, began)


# The worker imports a task by its path, and this file runs as __main__.
module = types.ModuleType("bench_tasks")
sys.modules[module.__name__] = module
for function in (noop, update, write, pause):
    function.__module__ = module.__name__
    setattr(module, function.__name__, task(function))


def setup() -> None:
    call_command("migrate", verbosity=0)


def fill(kind: str, tasks: str) -> None:
    from django_tasks_db.models import DBTaskResult

    table = DBTaskResult._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {table}")
        cursor.execute(FILL.replace("django_tasks_db_dbtaskresult", table), [f"bench_tasks.{kind}", int(tasks)])
        cursor.execute(f"VACUUM ANALYZE {table}")


def work(at_once: str = "", kind: str = "") -> None:
    wire.tell("working")
    call_command("db_worker", interval=0.05, startup_delay=False, verbosity=0)


def send() -> None:
    for line in sys.stdin:
        number, milliseconds = map(int, line.split())
        wire.sent(number, time.monotonic())
        module.pause.enqueue(number, milliseconds)


def enqueue(how: str, seconds: str) -> None:
    """One by one: it has no call for many."""
    connection.ensure_connection()
    wire.ready()
    began, enqueued = time.monotonic(), 0
    while time.monotonic() - began < float(seconds):
        module.noop.enqueue(1)
        enqueued += 1
    wire.rate(enqueued, began)


if __name__ == "__main__":
    {"setup": setup, "fill": fill, "work": work, "send": send, "enqueue": enqueue}[sys.argv[1]](*sys.argv[2:])
