"""ACCESS EXCLUSIVE on a table that workers need: they say who holds it and what ends that session, and go on after."""

import contextlib
import re
from collections.abc import Iterator

import psycopg
import pytest

from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until


@contextlib.contextmanager
def locked(database, *tables: str) -> Iterator[int]:
    with psycopg.connect(database.url, application_name="migration") as holder:
        holder.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
        yield holder.info.backend_pid


def names(line: str, pid: int, table: str) -> bool:
    """True if this line of the log says who holds the table, and how to end it."""
    holder = rf"; pid {pid} · migration · user \w+ · holds {table} · idle in transaction · since .*LOCK TABLE {table} "
    return bool(re.search(rf"{holder}.* · python manage.py signal_backend {pid} --started \S+ --terminate$", line)) or (
        bool(re.search(rf"{holder}.* · select pg_terminate_backend\({pid}\);$", line))
    )


def says(worker, text: str, pid: int, table: str) -> bool:
    return any(text in line and names(line, pid, table) for line in worker.log().splitlines())


def test_a_worker_that_cannot_claim_names_the_holder_and_goes_on_after(database, start_worker):
    worker = start_worker()
    wait_until(lambda: database.rows("SELECT 1 FROM tasks_worker"))
    with locked(database, "tasks_task") as pid:
        wait_until(lambda: says(worker, "could not claim: ", pid, "tasks_task"))
        wait_until(lambda: says(worker, "supervisor: trying again: ", pid, "tasks_task"))
    [task_id] = database.enqueue(handlers.work)
    wait_until(lambda: database.task(task_id).status == "COMPLETED")


def test_a_worker_that_cannot_start_names_the_holder_and_starts_after(database, start_worker):
    with locked(database, "tasks_worker") as pid:
        worker = start_worker()
        wait_until(lambda: says(worker, "cannot start: ", pid, "tasks_worker"))
    wait_until(lambda: database.rows("SELECT 1 FROM tasks_worker"))


def test_an_ending_that_cannot_be_written_names_the_holder_of_its_row(database, start_worker):
    [task_id] = database.enqueue(handlers.work, 1.5)
    worker = start_worker()
    wait_until(lambda: database.task(task_id).status == "PROCESSING")
    with psycopg.connect(database.url, application_name="psql") as other:
        other.execute("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", [task_id])
        named = f"; pid {other.info.backend_pid} · psql · user "
        wait_until(lambda: any("flushing around it" in line and named in line for line in worker.log().splitlines()))
    wait_until(lambda: database.task(task_id).status == "COMPLETED")


@pytest.mark.parametrize("table", ["tasks_task", "tasks_worker"])
def test_a_burst_that_cannot_recover_ends_and_names_the_holder(database, start_worker, table):
    with locked(database, table) as pid:
        worker = start_worker("--burst")
        assert worker.wait(20) == 1
    log = worker.log()
    assert "Traceback" not in log
    assert f"pid {pid} · migration · user " in log
    assert re.search(rf"(signal_backend|pg_terminate_backend).{pid}", log)


def test_a_table_of_migrations_that_is_locked_keeps_no_worker_from_starting(database, start_worker):
    with locked(database, "django_migrations"):
        start_worker()
        wait_until(lambda: database.rows("SELECT 1 FROM tasks_worker"))
