"""Beside a line that is full of dead rows, tasks with keys or limits are claimed by themselves."""

import time

import pytest

from tasks.queue import claim, shortcut, strategies
from tests.tasks.plans import explain
from tests.tasks.queue.test_shortcut import (  # noqa: F401  the fixtures
    READY,
    bloated,
    claimer,
    exhausted,
    long_walks,
    pages,
    session,
)

KEYED = "INSERT INTO tasks_task (task_path, {0}) SELECT 'keyed', gen_random_uuid() FROM generate_series(1, 3)"


@pytest.fixture
def rested(session, monkeypatch):  # noqa: F811
    """A claimer after two slow walks, whose keys have rested."""
    found = exhausted(session, monkeypatch)
    found.keyed_at = time.monotonic()
    return found


@pytest.mark.usefixtures("long_walks")
@pytest.mark.parametrize("column", ["ordering_key", "concurrency_key"])
def test_tasks_with_keys_wait_for_no_walk(session, rested, monkeypatch, column):  # noqa: F811
    monkeypatch.setattr(shortcut, "_claim_from_front", pytest.fail)
    monkeypatch.setattr(shortcut, "KEYED_RESTS", 0)
    session.execute(READY, [0, 2])
    session.execute(KEYED.format(column))
    taken = [claim.task_path for _ in range(5) for claim in strategies.claim(session, rested, 1)]
    assert taken == ["keyed"] * 3 + ["a"] * 2


@pytest.mark.usefixtures("long_walks")
def test_they_leave_most_of_the_time_to_others(session, rested, monkeypatch):  # noqa: F811
    monkeypatch.setattr(shortcut, "KEYED_RESTS", 1_000_000)
    session.execute(READY, [0, 3])
    session.execute(KEYED.format("ordering_key"))
    assert shortcut.send(session, rested, 1) is None, "no claim is sent ahead of theirs"
    taken = [claim.task_path for _ in range(3) for claim in strategies.claim(session, rested, 1)]
    assert taken == ["keyed", "a", "a"]
    assert rested.keyed_at - time.monotonic() <= shortcut.MOST_SECONDS
    [after] = shortcut.send(session, rested, 1)()
    assert after.task_path == "a"


@pytest.mark.usefixtures("long_walks")
def test_where_none_is_due_they_rest(session, rested, monkeypatch):  # noqa: F811
    monkeypatch.setattr(shortcut, "KEYED_RESTS", 0)
    began = time.monotonic()
    assert strategies.claim(session, rested, 1) == []
    assert rested.keyed_at >= began + shortcut.KEYED_REST_SECONDS


@pytest.mark.parametrize("queues", [None, ["default"]], ids=["all queues", "one queue"])
def test_their_claim_reads_nothing_of_the_line(session, claimer, queues):  # noqa: F811
    claimer.queues = queues
    by_the_line = explain(session, claim.CLAIM, claimer.params(3))
    session.execute(KEYED.format("ordering_key"))
    claimer.keys_rest_until = 0.0
    by_keys = explain(session, claim.CLAIM, claimer.params(3, unkeyed=False), mode=None)
    assert by_keys.node["Actual Rows"] == 3
    assert 5 * pages(by_keys) < pages(by_the_line)
