"""A line of one queue and priority and without keys is claimed from by a shorter statement, and just as any other."""

import math
import time
from datetime import timedelta

import psycopg
import pytest
from django.db import connection, transaction
from django.utils import timezone
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tasks.models import Queue
from tasks.queue import shortcut, strategies
from tasks.queue.claim import Claimer
from tasks.support.database import WORKER_SESSION
from tests import databases
from tests.tasks import rows
from tests.tasks.claiming import ids
from tests.tasks.plans import explain

QUEUES = ("a", "b")
PAUSED = "b"
NOW = timezone.now()
ROW = st.fixed_dictionaries(
    {
        "queue_name": st.sampled_from(QUEUES),
        "priority": st.integers(0, 1),
        "ordering_key": st.sampled_from((None, None, None, "k")),
        "status": st.sampled_from(("READY", "READY", "READY", "PROCESSING", "COMPLETED")),
        "run_after": st.integers(-3, 1).map(lambda hours: NOW + timedelta(hours=hours)),
    }
)
MAKERS = {
    "READY": rows.ready,
    "PROCESSING": lambda **columns: rows.processing("w2", **columns),
    "COMPLETED": rows.completed,
}
DUE = {"queue_name": "a", "priority": 0, "ordering_key": None, "status": "READY", "run_after": NOW - timedelta(hours=1)}


def is_plain(columns):
    """What `tasks.queue.claim` promises, in Python."""
    unfinished = [row for row in columns if row["status"] in ("READY", "PROCESSING")]
    ready = [row for row in unfinished if row["status"] == "READY"]
    pairs = {(row["queue_name"], row["priority"]) for row in ready}
    return len(pairs) <= 1 and not any(row["ordering_key"] for row in unfinished)


@pytest.fixture
def no_rest(monkeypatch):
    monkeypatch.setattr(shortcut, "MIXED_SECONDS", math.inf)


@pytest.mark.django_db
@pytest.mark.usefixtures("no_rest")
@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=150)
@given(
    columns=st.lists(ROW, max_size=6),
    queues=st.sampled_from((None, ["a"], ["b"], ["b", "a"])),
    has_pause=st.booleans(),
    limit=st.sampled_from((1, 2, 10)),
)
@example(columns=[], queues=None, has_pause=False, limit=1)
@example(columns=[DUE, DUE, DUE], queues=None, has_pause=False, limit=2)
@example(columns=[DUE, DUE | {"run_after": NOW + timedelta(hours=1)}], queues=None, has_pause=False, limit=10)
@example(columns=[DUE | {"queue_name": "b"}] * 2, queues=None, has_pause=True, limit=2)
@example(columns=[DUE, DUE | {"queue_name": "b"}], queues=["a"], has_pause=False, limit=10)
@example(columns=[DUE, DUE | {"priority": 1}], queues=None, has_pause=False, limit=1)
@example(columns=[DUE, DUE | {"ordering_key": "k"}], queues=None, has_pause=False, limit=1)
@example(columns=[DUE, DUE | {"ordering_key": "k", "status": "PROCESSING"}], queues=None, has_pause=False, limit=1)
@example(columns=[DUE, DUE | {"ordering_key": "k", "status": "COMPLETED"}], queues=None, has_pause=False, limit=1)
def test_it_takes_what_the_walk_takes(columns, queues, has_pause, limit):
    with transaction.atomic():
        if has_pause:
            Queue.objects.create(name=PAUSED, paused=True)
        held = False
        for row in columns:
            is_second_holder = held and row["status"] == "PROCESSING" and row["ordering_key"]
            held = held or (row["status"] == "PROCESSING" and row["ordering_key"] is not None)
            status = "COMPLETED" if is_second_holder else row["status"]
            MAKERS[status](**{name: value for name, value in row.items() if name != "status"})
        asking, walking = Claimer("w1", queues), Claimer("w1", queues, line_is_mixed_until=math.inf)
        taken = taken_and_given_back(asking, limit)
        walked = taken_and_given_back(walking, limit)
        assert (asking.line_is_mixed_until == 0.0) == is_plain(columns)
        if is_plain(columns):
            assert taken == walked
            assert asking.has_been_round == (not taken) == walking.has_been_round
        transaction.set_rollback(True)


def taken_and_given_back(claimer, limit):
    with transaction.atomic():
        taken = strategies.claim(connection, claimer, limit)
        transaction.set_rollback(True)
    return [(claim.id, claim.version, claim.attempt, claim.queue_name, claim.priority) for claim in taken]


@pytest.mark.django_db
class TestStatements:
    @pytest.fixture(autouse=True)
    def no_claim_is_slow(self, monkeypatch):
        """On a busy machine two are, and then one more statement asks for the size of the index."""
        monkeypatch.setattr(shortcut, "SLOW_SECONDS", math.inf)

    def test_a_plain_line_takes_one(self, django_assert_num_queries):
        rows.many(3)
        with django_assert_num_queries(1):
            assert len(strategies.claim(connection, Claimer("w1"), 2)) == 2

    def test_so_does_an_empty_one(self, django_assert_num_queries):
        claimer = Claimer("w1", cursor="k")
        with django_assert_num_queries(1):
            assert strategies.claim(connection, claimer, 2) == []
        assert claimer.has_been_round, "there are no keys to walk on through"

    def test_of_any_other_it_is_not_asked_again_for_a_while(self, django_assert_num_queries):
        expected = rows.many(2, priority=1) + rows.many(2)
        claimer = Claimer("w1")
        began = time.monotonic()
        first = strategies.claim(connection, claimer, 1)
        rests_from = claimer.line_is_mixed_until - shortcut.MIXED_SECONDS
        assert began <= rests_from <= time.monotonic()
        claimer.line_is_mixed_until = math.inf
        with django_assert_num_queries(3):  # a savepoint, the walk, and its release
            second = strategies.claim(connection, claimer, 1)
        claimer.line_is_mixed_until = 0.0
        assert ids(first + second + strategies.claim(connection, claimer, 10)) == expected


FILL = """
INSERT INTO tasks_task (task_path, status, attempt, finished_at, run_after)
SELECT 'a', %(status)s::text, 1, CASE WHEN %(status)s::text = 'COMPLETED' THEN now() END, now() + %(due)s::interval
FROM generate_series(1, 50000)
"""


@pytest.fixture(scope="module")
def filled(template_url):
    """Many of one queue and priority, of which the statistics know nothing."""
    with databases.copy_of(template_url) as database:
        database.rows("ALTER TABLE tasks_task SET (autovacuum_enabled = off)")
        database.rows("ANALYZE tasks_task")
        for status, due in (("READY", "-1 hour"), ("READY", "1 day"), ("COMPLETED", "-1 hour")):
            database.connection.execute(FILL, {"status": status, "due": due})
        yield database


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("limit", [1, 500])
def test_it_reads_what_it_takes(filled, limit, mode):
    with psycopg.connect(filled.url, autocommit=True, options=WORKER_SESSION) as session:
        found = explain(session, shortcut.CLAIM_PLAIN, Claimer("w1").params(limit), mode=mode)
    assert found.scans() <= {"Index Scan", "Index Only Scan"}
    assert found.rows_changed() == limit
    assert found.rows_read() <= 2 * limit + 5


@pytest.mark.parametrize("pair", [{"priority": 5}, {"queue_name": "z"}, {"ordering_key": "k"}], ids=str)
def test_of_another_line_it_reads_next_to_nothing(filled, pair):
    [column], [value] = pair.keys(), pair.values()
    with psycopg.connect(filled.url, options=WORKER_SESSION) as session:
        session.execute(f"INSERT INTO tasks_task (task_path, {column}) VALUES ('a', %s)", [value])
        found = explain(session, shortcut.CLAIM_PLAIN, Claimer("w1").params(500), mode=None)
        session.rollback()
    assert found.rows_changed() == 0
    assert found.rows_read() <= 5
