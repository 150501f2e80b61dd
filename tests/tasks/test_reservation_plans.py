"""However long the line, a reservation reads what it takes, and what ends it reads these tasks."""

import psycopg
import pytest

from tasks import latency, reservation
from tasks.claimer import KEYS_PER_STRIDE
from tasks.database import WORKER_SESSION
from tasks.reservation import CLAIM, END, NOTE, RESERVE_FIRST, RESERVE_FOLLOWING
from tests import databases
from tests.tasks.plans import explain

BATCH = 2_000
EACH = 30_000
INDEXED = {"Index Scan", "Index Only Scan"}
FILL = """
INSERT INTO tasks_task (task_path, status, attempt, finished_at, run_after)
SELECT 'a', %(status)s::text, 1, CASE WHEN %(status)s::text = 'COMPLETED' THEN now() END, now() + %(due)s::interval
FROM generate_series(1, %(count)s::int)
"""
NOTES = """
INSERT INTO tasks_reservation (worker_id, slot, queue_name, first_id, members, reserved_at)
SELECT 'w' || n, 1, 'default', 1000 * n, decode(repeat('ff', 250), 'hex'), now() FROM generate_series(1, 100) AS n
"""


@pytest.fixture(scope="module")
def filled(template_url):
    """A long line, beside which others wait and are over, and the notes of a hundred workers; no statistics know it."""
    with databases.copy_of(template_url) as database:
        database.rows("ALTER TABLE tasks_task SET (autovacuum_enabled = off)")
        database.rows("ANALYZE tasks_task, tasks_reservation")
        for status, due in (("READY", "-1 hour"), ("READY", "1 day"), ("COMPLETED", "-1 hour")):
            database.connection.execute(FILL, {"status": status, "due": due, "count": EACH})
        database.rows(NOTES)
        yield database


@pytest.fixture(params=["force_custom_plan", "force_generic_plan"])
def plan(request, filled):
    with psycopg.connect(filled.url, autocommit=True, options=WORKER_SESSION) as session:
        yield lambda statement, params: explain(session, statement, params, mode=request.param)


@pytest.fixture
def batch(filled):
    """A batch from the middle of the line, as the statements take it."""
    ids = list(range(EACH // 2 + 1, EACH // 2 + 1 + BATCH))
    return {
        "worker_id": "w5",
        "slot": 1,
        "queue_name": "default",
        "first_id": ids[0],
        "members": reservation.members(ids),
        "reserved_at": "2026-11-20T03:00:00+00:00",
        "ids": ids,
        "versions": [2] * BATCH,
        "return_values": [],
        "started_ago": [100_000] * BATCH,
        "finished_ago": [0] * BATCH,
        "bounds": list(latency.BOUNDS_SECONDS),
    }


@pytest.mark.parametrize("limit", [1, BATCH])
def test_behind_a_batch_it_reads_what_it_takes(plan, filled, limit):
    behind = filled.value("SELECT run_after FROM tasks_task WHERE id = 1")
    params = {"queue_name": "default", "priority": 0, "run_after": behind, "id": EACH // 2, "limit": limit}
    found = plan(RESERVE_FOLLOWING, params)
    assert found.scans() <= INDEXED
    assert limit <= found.rows_read() <= limit + 5


@pytest.mark.parametrize("queues", [None, ["default"], ["other", "default"]], ids=str)
@pytest.mark.parametrize("limit", [1, BATCH])
def test_so_it_does_from_the_beginning_of_the_line(plan, queues, limit):
    found = plan(RESERVE_FIRST, {"queues": queues, "cursor": "", "keys": KEYS_PER_STRIDE, "limit": limit})
    assert found.scans() <= INDEXED
    assert limit <= found.rows_read() <= limit + 10


@pytest.mark.parametrize("statement", [END, CLAIM], ids=["end", "claim"])
def test_what_ends_a_batch_reads_these_tasks(plan, batch, statement):
    found = plan(statement, batch)
    assert found.scans() <= INDEXED
    assert BATCH <= found.rows_read() <= 2 * BATCH
    assert found.rows_met() <= 8 * BATCH


def test_a_note_reads_its_own(plan, batch):
    found = plan(NOTE, batch)
    assert found.scans("tasks_reservation") == set()
    assert found.rows_changed() == 1
