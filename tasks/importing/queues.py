"""The tables of django-tasks-db and of Procrastinate, which are queues like ours."""

from collections.abc import Iterator

from django.db import connection

from tasks.importing.found import RUNNING, Found, pages, present, require_table
from tasks.support.database import fetch

# A row without `run_after` has the greatest one.
DJANGO_TASKS_DB = """
SELECT id::text AS id, to_jsonb(result)::text AS row, run_after >= '9999-01-01 00:00:00+00' AS is_now
FROM django_tasks_database_dbtaskresult AS result
WHERE status IN ('READY', 'RUNNING') AND id > %(after)s::uuid ORDER BY id LIMIT %(rows)s::int
"""
PROCRASTINATE = """
SELECT id, to_jsonb(job)::text AS row FROM procrastinate_jobs AS job
WHERE status IN ('todo', 'doing') AND id > %(after)s::bigint ORDER BY id LIMIT %(rows)s::int
"""
PROCRASTINATE_PERIODIC = """
SELECT task_name, periodic_id FROM procrastinate_periodic_defers GROUP BY task_name, periodic_id ORDER BY 1, 2
"""
IN_CODE = "its times are in code, not in a table: declare them with @task(schedule=…)"


def read_django_tasks_db() -> Iterator[Found]:
    """The results that are not finished. Their ids are random, so the time of creation gives their order."""
    require_table("django_tasks_database_dbtaskresult", "django-tasks-db")
    for page in pages(DJANGO_TASKS_DB, "00000000-0000-0000-0000-000000000000"):
        row = page["row"]
        yield Found(
            id=page["id"],
            function=row["task_path"],
            args=row["args_kwargs"]["args"],
            kwargs=row["args_kwargs"]["kwargs"],
            queue_name=row["queue_name"],
            priority=row["priority"],
            run_after=None if page["is_now"] else row["run_after"],
            created_at=row["enqueued_at"],
            problem=RUNNING if row["status"] == "RUNNING" else "",
        )


def read_procrastinate() -> Iterator[Found]:
    """The jobs that are not finished, and the names of periodic tasks, which have no table."""
    require_table("procrastinate_jobs", "Procrastinate")
    for defer in fetch(connection, PROCRASTINATE_PERIODIC):
        name = f"{defer['task_name']} {defer['periodic_id']}".strip()
        yield Found(id=f"periodic {name}", function=defer["task_name"], problem=IN_CODE)
    for page in pages(PROCRASTINATE, 0):
        row = page["row"]
        yield Found(
            id=str(page["id"]),
            function=row["task_name"],
            kwargs=row["args"],
            queue_name=row["queue_name"],
            priority=row["priority"],
            run_after=row["scheduled_at"],
            ordering_key=row["lock"],
            unique_key=row["queueing_lock"],
            options=present(row, ["attempts"]),
            problem=RUNNING if row["status"] == "doing" else "",
        )
