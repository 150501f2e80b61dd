"""However many tasks there are, the statements of a worker read few: whatever is scheduled, paused or over, with
statistics of this moment and of another, with plans made for these values and for any.
"""

import itertools

import psycopg
import pytest

from tasks.queue import claim, completion, presence, recovery, release, strategies, throughput
from tasks.queue.claim import KEYS_PER_STRIDE, Claimer
from tasks.support.database import WORKER_SESSION
from tests import databases
from tests.tasks.plans import explain

INDEXED = {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}
HOLDERS, HELD_BY_EACH = 100, 300
BATCH = 500

FILL = """
INSERT INTO tasks_task (task_path, queue_name, priority, status, attempt, finished_at, run_after, ordering_key,
    concurrency_key)
SELECT 'a', %(queue)s::text || n %% 5, n %% 7 - 3 + %(raised)s::int, %(status)s::text, 1,
    CASE WHEN %(status)s::text = 'COMPLETED' THEN clock_timestamp() END,
    clock_timestamp() + %(due)s::interval, CASE WHEN %(keys)s::int > 0 THEN 'k' || n %% %(keys)s::int END,
    %(limit)s::text
FROM generate_series(1, %(count)s::int) AS n
"""
FILL_CLAIMED = """
INSERT INTO tasks_task (task_path, status, attempt, version, claimed_by, started_at)
SELECT 'a', 'PROCESSING', 1, 2, 'w' || n %% %(holders)s::int, clock_timestamp()
FROM generate_series(1, %(count)s::int) AS n
"""
WAITING = {"queue": "q", "status": "READY", "raised": 0, "due": "-1 hour", "keys": 0, "limit": None}
CONTENTS = [
    WAITING | {"count": 200_000},
    WAITING | {"count": 100_000, "status": "COMPLETED"},
    WAITING | {"count": 100_000, "due": "1 day", "raised": 50},
    WAITING | {"count": 100_000, "queue": "paused"},
    WAITING | {"count": 20_000, "keys": 2_000},
    WAITING | {"count": 20_000, "queue": "later", "due": "1 day"},
    WAITING | {"count": 100_000, "limit": "held"},
]


@pytest.fixture(scope="module")
def filled(template_url):
    """A queue of half a million rows, all but one of them unknown to the statistics."""
    with databases.copy_of(template_url) as database:
        database.rows("ALTER TABLE tasks_task SET (autovacuum_enabled = off)")
        database.rows("INSERT INTO tasks_task (task_path) VALUES ('a')")
        database.rows("ANALYZE tasks_task")
        for contents in CONTENTS:
            database.connection.execute(FILL, contents)
        database.connection.execute(FILL_CLAIMED, {"holders": HOLDERS, "count": HOLDERS * HELD_BY_EACH})
        database.rows(
            "INSERT INTO tasks_queue (name, paused) SELECT 'paused' || n, true FROM generate_series(0, 4) AS n"
        )
        database.rows("INSERT INTO tasks_limit (key, paused) VALUES ('held', true)")
        yield database


EMPTY, NOW = "statistics of an empty table", "statistics of this moment"
CUSTOM, GENERIC = "force_custom_plan", "force_generic_plan"


@pytest.fixture(
    scope="module",
    params=[
        (EMPTY, CUSTOM, WORKER_SESSION),
        (EMPTY, GENERIC, WORKER_SESSION),
        (NOW, CUSTOM, WORKER_SESSION),
        (NOW, GENERIC, WORKER_SESSION),
        (NOW, CUSTOM, ""),  # any other session, which prepares nothing
    ],
    ids=lambda param: " ".join(param[:2]) + (", worker" if param[2] else ""),
)
def planner(request, filled):
    """A session, and which kind of plan it makes."""
    statistics, mode, options = request.param
    if statistics == NOW:
        filled.rows("ANALYZE")
    with psycopg.connect(filled.url, autocommit=True, options=options) as conn:
        yield conn, mode


@pytest.fixture
def plan(planner):
    conn, mode = planner
    return lambda statement, params: explain(conn, statement, params, mode=mode)


@pytest.fixture
def held(planner):
    """What one worker holds, as the arrays that the statements take."""
    rows = planner[0].execute("SELECT id, started_at FROM tasks_task WHERE claimed_by = 'w5' ORDER BY id").fetchall()
    number, ids = len(rows), [row[0] for row in rows]
    return {
        "worker_id": "w5",
        "ids": ids,
        "attempts": [1] * number,
        "claimed_at": [row[1] for row in rows],
        "versions": [2] * number,
        "return_values": ["null"] * number,
        "started_ago": [100_000] * number,
        "finished_ago": [0] * number,
        "bounds": list(throughput.BOUNDS_SECONDS),
        "retry_seconds": [1.0] * number,
        "outcomes": ["failed"] * number,
        "exception_classes": ["E"] * number,
        "tracebacks": [""] * number,
        "places": ["app.py:f"] * number,
        "traceparents": [None] * number,
        "release": "",
        "parked_for": "",
        "held": ids[: number // 2],
    }


SERVED = [None, ["q0"], ["q3", "q1"], ["paused0", "q1"]]


@pytest.mark.parametrize("queues", SERVED, ids=str)
@pytest.mark.parametrize("limit", [1, BATCH])
def test_a_claim_reads_what_it_takes_and_the_heads_of_keys(plan, queues, limit):
    found = plan(claim.CLAIM, Claimer("w1", queues).params(limit))
    assert found.scans() <= INDEXED
    assert found.rows_changed() == limit
    # Each row taken is met twice, each head twice, and each pair of queue and priority once.
    assert found.rows_read() <= 2 * limit + 2 * KEYS_PER_STRIDE + 200
    assert found.rows_sorted() <= limit + KEYS_PER_STRIDE + 200


@pytest.mark.parametrize("queues", SERVED, ids=str)
def test_so_does_a_look_for_candidates(plan, queues):
    found = plan(strategies.READ_CANDIDATES, Claimer("w1", queues).params(BATCH))
    assert found.scans() <= INDEXED
    assert found.rows_read() <= 2 * BATCH + 2 * KEYS_PER_STRIDE + 200


@pytest.mark.parametrize("queue", ["later", "paused", "nobody uses it"])
def test_where_nothing_is_due_next_to_nothing_is_read(plan, queue):
    queues = [f"{queue}{number}" for number in range(5)]
    found = plan(claim.CLAIM, {**Claimer("w1", queues).params(BATCH), "keys": 0})
    assert found.rows_changed() == 0
    assert found.rows_read() <= 100


# With what functions read, of which a plan shows nothing.
READ_BY_INDEX = "SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'tasks_task'"


@pytest.mark.parametrize("column", ["concurrency_key", "ordering_key"])
def test_a_claim_reads_no_running_tasks_but_those_of_its_keys(template_url, column):
    """By statistics of a quiet hour, with 3,000 tasks running since."""
    with databases.copy_of(template_url) as database, psycopg.connect(database.url, autocommit=True) as connection:
        database.rows("ALTER TABLE tasks_task SET (autovacuum_enabled = off)")
        database.connection.execute(
            f"INSERT INTO tasks_task (task_path, {column}) SELECT 'a', 'l' || n FROM generate_series(1, 40000) n"
        )
        database.connection.execute("VACUUM ANALYZE tasks_task")
        claimer, read = Claimer("w1"), [0]
        for _ in range(11):
            with connection.transaction():
                assert len(claim.walk(connection, claim.CLAIM, claimer, KEYS_PER_STRIDE)) == KEYS_PER_STRIDE
                read += connection.execute(READ_BY_INDEX).fetchone()
    assert max(after - before for before, after in itertools.pairwise(read)) <= 10 * KEYS_PER_STRIDE


ENDINGS = {
    "complete": completion.COMPLETE,
    "fail": completion.FAIL,
    "still ours": completion.STILL_OURS,
    "locked": completion.LOCKED,
    "release": release.RELEASE,
    "release unknown": release.RELEASE_UNKNOWN,
}


@pytest.mark.parametrize("name", ENDINGS)
def test_what_ends_tasks_reads_these_tasks(plan, held, name):
    found = plan(ENDINGS[name], held)
    assert found.scans() <= INDEXED
    assert HELD_BY_EACH <= found.rows_read() <= 3 * HELD_BY_EACH


def test_a_swap_reads_its_row(plan):
    found = plan(strategies.SWAP, {**Claimer("w1").params(1), "ids": [2], "versions": [1]})
    assert (found.scans() <= INDEXED, found.rows_changed()) == (True, 1)
    assert found.rows_read() <= 2


def test_a_sweep_meets_each_holder_once_however_much_it_holds(plan):
    found = plan(presence.KNOWN_IDS, {})
    assert found.scans() <= INDEXED
    assert found.rows_read() <= HOLDERS + 1


@pytest.mark.parametrize("limit", [10, recovery.CHUNK])
def test_taking_back_reads_what_the_dead_held(plan, limit):
    params = {"dead": ["w5", "w6"], "limit": limit, "include_ask": False, "task_ids": None, "but": []}
    found = plan(recovery.TAKE_BACK, params)
    expected = min(limit, 2 * HELD_BY_EACH)
    assert found.scans() <= INDEXED
    assert found.rows_changed() == expected
    assert found.rows_read() <= 3 * expected


def test_completions_of_a_short_queue_are_not_joined_to_each_of_its_rows(template_url):
    """With statistics that know no claimed row, a plan for these values would be quadratic in the batch."""
    with databases.copy_of(template_url) as database:
        database.rows("ALTER TABLE tasks_task SET (autovacuum_enabled = off)")
        database.rows("INSERT INTO tasks_task (task_path) SELECT 'a' FROM generate_series(1, 20000)")
        database.rows("ANALYZE tasks_task")
        with psycopg.connect(database.url, autocommit=True, options=WORKER_SESSION) as conn:
            claimed = strategies.claim(conn, Claimer("w1"), BATCH)
            endings = [completion.Ending(claim.id, claim.version, claim.attempt, 0.0, 0.0) for claim in claimed]
            found = explain(conn, completion.COMPLETE, completion.completion_params("w1", endings), mode=None)
        assert found.rows_changed() == BATCH
        assert found.rows_met() <= 10 * BATCH
