"""Runs that a person asks for: two who ask at the same moment get one run."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections

from tasks import patterns
from tasks.models import Intervention, Task
from tasks.support.audit import Who
from tests.sessions import session
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
TAKE = "SELECT pg_advisory_lock(hashtext('rowlock:pattern:' || current_schema()), hashtext('shipped_emails'))"
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


def ask(actor: str) -> patterns.Requested:
    try:
        return patterns.request(patterns.get("shipped_emails"), {"mode": "send_first"}, Who(actor, "page"))
    finally:
        connections.close_all()


def test_f07_two_who_ask_at_the_same_moment_get_one_run():
    with session(autocommit=True) as gate, ThreadPoolExecutor(2) as pool:
        gate.execute(TAKE)
        asked = [pool.submit(ask, actor) for actor in ("anna", "bert")]

        wait_until(lambda: waiting_for_the_lock() == 2)
        gate.execute("SELECT pg_advisory_unlock_all()")
    first, second = (future.result() for future in asked)
    assert first.task_id == second.task_id
    assert {first.is_new, second.is_new} == {True, False}
    assert (Task.objects.count(), Intervention.objects.count()) == (1, 1)


def waiting_for_the_lock() -> int:
    with connection.cursor() as cursor:
        cursor.execute(WAITING)
        return cursor.fetchone()[0]
