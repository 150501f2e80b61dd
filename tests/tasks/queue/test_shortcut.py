"""Where the beginning of the line is full of dead rows, the next claims go on behind the last one, for a moment."""

import math
import time
from dataclasses import replace

import psycopg
import pytest

from tasks.queue import claim, shortcut, strategies
from tasks.queue.claim import Claimer
from tasks.queue.shortcut import Shortcut, behind_params
from tasks.support.database import WORKER_SESSION
from tests import databases
from tests.tasks.plans import explain

DEAD = 120_000
READY = "INSERT INTO tasks_task (task_path, priority) SELECT 'a', %s FROM generate_series(1, %s)"
DONE = """
UPDATE tasks_task SET status = 'COMPLETED', finished_at = now() WHERE status = 'READY'
"""


@pytest.fixture(scope="module")
def bloated(template_url):
    """A queue after many tasks, which nobody has cleaned up."""
    with databases.copy_of(template_url) as database:
        database.rows("ALTER TABLE tasks_task SET (autovacuum_enabled = off)")
        database.rows(READY, 0, DEAD)
        database.rows(DONE)
        yield database


@pytest.fixture
def session(bloated):
    bloated.rows("DELETE FROM tasks_queue")
    bloated.rows(DONE)
    with psycopg.connect(bloated.url, autocommit=True, options=WORKER_SESSION) as connection:
        yield connection


@pytest.fixture
def claimer(session):
    """Has taken one of ten tasks, and remembers where it ended."""
    session.execute(READY, [0, 10])
    claimer = Claimer("w1")
    [first] = strategies.claim(session, claimer, 1)
    claimer.shortcut = Shortcut({("default", 0): (first.run_after, first.id)}, math.inf)
    return claimer


def ends(claimer):
    """Where the claims that it remembers have ended."""
    return [id for _, id in claimer.shortcut.ends.values()]


def pages(plan):
    return plan.node["Shared Hit Blocks"] + plan.node["Shared Read Blocks"]


def ids(taken):
    return [claim.id for claim in taken]


def claim_slowly(connection, monkeypatch, *seconds):
    """Claims of one task each, which take so long in the eyes of the claimer."""
    claimer = Claimer("w1")
    for each in seconds:
        monkeypatch.setattr(shortcut, "SLOW_SECONDS", -1 if each else 60)
        strategies.claim(connection, claimer, 1)
    return claimer


def test_two_slow_claims_on_a_large_index_are_remembered(session, monkeypatch):
    session.execute(READY, [0, 3])
    claimer = claim_slowly(session, monkeypatch, 1, 1)
    [last] = session.execute(
        "SELECT max(id) FROM tasks_task WHERE claimed_by = 'w1' AND status = 'PROCESSING'"
    ).fetchone()
    assert ends(claimer) == [last]
    assert time.monotonic() < claimer.shortcut.until <= time.monotonic() + shortcut.MOST_SECONDS


@pytest.mark.parametrize("seconds", [(1,), (1, 0), (1, 0, 1)])
def test_a_single_slow_claim_is_chance(session, monkeypatch, seconds):
    session.execute(READY, [0, 3])
    assert claim_slowly(session, monkeypatch, *seconds).shortcut is None


def test_a_tedious_one_is_not(session, monkeypatch):
    monkeypatch.setattr(shortcut, "TEDIOUS_SECONDS", -1)
    session.execute(READY, [0, 3])
    assert claim_slowly(session, monkeypatch, 0).shortcut.is_tedious


def test_a_claim_of_many_tasks_is_reason_enough(session, monkeypatch):
    monkeypatch.setattr(shortcut, "SLOW_SECONDS", 60)
    session.execute(READY, [0, 2 * shortcut.MANY])
    claimer = Claimer("w1")
    strategies.claim(session, claimer, shortcut.MANY - 1)
    assert claimer.shortcut is None
    taken = strategies.claim(session, claimer, shortcut.MANY)
    assert ends(claimer) == [taken[-1].id]


def test_a_claim_of_many_tasks_on_a_small_index_is_not(database):
    database.rows(READY, 0, shortcut.MANY)
    claimer = Claimer("w1")
    assert len(strategies.claim(database.connection, claimer, shortcut.MANY)) == shortcut.MANY
    assert claimer.shortcut is None


def test_slow_claims_on_a_small_index_are_the_machine_s_fault(database, monkeypatch):
    database.rows(READY, 0, 3)
    assert claim_slowly(database.connection, monkeypatch, 1, 1).shortcut is None


def test_it_takes_the_same_tasks_in_the_same_order(session, claimer):
    following = ids(strategies.claim(session, claimer, 4))
    assert ends(claimer) == [following[-1]], "it goes along"
    following += ids(strategies.claim(session, claimer, 10))
    assert following == list(range(following[0], following[0] + 9))


def test_it_reads_what_it_takes_and_not_what_is_dead(session, claimer):
    by_the_line = explain(session, claim.CLAIM, claimer.params(3))
    by_the_shortcut = explain(
        session, shortcut.CLAIM_BEHIND, behind_params(claimer, claimer.shortcut, 3, may_be_alone=True)
    )
    assert 5 * pages(by_the_shortcut) < pages(by_the_line)


def test_what_another_holds_is_passed_over(bloated, session, claimer):
    [first] = ends(claimer)
    with psycopg.connect(bloated.url) as other:
        other.execute("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", [first + 1])
        [taken] = strategies.claim(session, claimer, 1)
        assert taken.id == first + 2


def test_what_is_scheduled_behind_it_is_not_due(session, claimer):
    assert len(strategies.claim(session, claimer, 9)) == 9
    session.execute("INSERT INTO tasks_task (task_path, run_after) VALUES ('a', now() + interval '1 hour')")
    assert strategies.claim(session, claimer, 1) == []


def test_no_more_than_asked_are_taken_of_several_priorities(session):
    for priority in (5, 0):
        session.execute(READY, [priority, 3])
    ends = {("default", priority): ("-infinity", 0) for priority in (5, 0)}
    taken = strategies.claim(session, Claimer("w1", shortcut=Shortcut(ends, math.inf)), 4)
    assert [claim.priority for claim in taken] == [5, 5, 5, 0]


def test_a_task_that_comes_in_between_waits_until_the_line_is_walked_again(session, claimer):
    session.execute(READY, [9, 1])
    [taken] = strategies.claim(session, claimer, 1)
    assert taken.priority == 0
    claimer.shortcut = replace(claimer.shortcut, until=time.monotonic())
    [taken] = strategies.claim(session, claimer, 1)
    assert taken.priority == 9


def test_when_nothing_is_behind_it_the_line_is_walked_at_once(session, claimer):
    assert len(strategies.claim(session, claimer, 100)) == 9
    session.execute(READY, [9, 1])
    [taken] = strategies.claim(session, claimer, 1)
    assert taken.priority == 9


def test_a_queue_that_is_paused_meanwhile_is_heeded(session, claimer):
    session.execute("INSERT INTO tasks_queue (name, paused) VALUES ('default', true)")
    assert strategies.claim(session, claimer, 1) == []


def exhausted(session, monkeypatch, **options):
    """A claimer that has taken one task, and then none: both walks were slow."""
    session.execute(READY, [0, 1])
    monkeypatch.setattr(shortcut, "SLOW_SECONDS", -1)
    claimer = Claimer("w1", **options)
    [last] = ids(strategies.claim(session, claimer, 1))
    assert strategies.claim(session, claimer, 1) == []
    assert ends(claimer) == [last]
    return claimer


def is_over(claimer, *, may_walk=True):
    """The time of its shortcut is over, and that of all workers of its supervisor if one may walk again."""
    claimer.shortcut = replace(claimer.shortcut, until=time.monotonic())
    if may_walk:
        claimer.walks.next_at = min(claimer.walks.next_at, time.monotonic())


def test_after_a_slow_walk_that_found_nothing_one_claim_goes_on_behind_it(session, monkeypatch):
    """However late it comes: what a worker is woken for stands there."""
    claimer = exhausted(session, monkeypatch)
    is_over(claimer)
    session.execute(READY, [0, 2])
    assert len(strategies.claim(session, claimer, 1)) == 1
    assert claimer.shortcut is None, "the next one walks the line from its beginning"


@pytest.fixture
def long_walks(monkeypatch):
    """Walks are tedious, and a shortcut lasts for a minute after one."""
    for name, value in (("TEDIOUS_SECONDS", -1), ("SHORTCUT_CLAIMS", math.inf), ("MOST_SECONDS", 60)):
        monkeypatch.setattr(shortcut, name, value)


@pytest.mark.usefixtures("long_walks")
def test_soon_after_such_a_walk_more_claims_go_on_behind_it(session, monkeypatch):
    claimer = exhausted(session, monkeypatch)
    session.execute(READY, [0, 2])
    session.execute(READY, [9, 1])
    taken = [*strategies.claim(session, claimer, 1), *strategies.claim(session, claimer, 1)]
    assert [claim.priority for claim in taken] == [0, 0]
    is_over(claimer)
    [taken] = strategies.claim(session, claimer, 1)
    assert taken.priority == 9, "not one claim more"


@pytest.mark.usefixtures("long_walks")
@pytest.mark.parametrize("found", [True, False], ids=["found", "empty"])
def test_a_claim_that_finds_nothing_behind_a_tedious_walk_waits_for_the_next_one(session, monkeypatch, found):
    claimer = exhausted(session, monkeypatch)
    if found:
        session.execute(READY, [0, 1])
        assert len(strategies.claim(session, claimer, 1)) == 1
    session.execute(READY, [9, 1])
    assert strategies.claim(session, claimer, 1) == []
    assert 0 < claimer.look_in <= 60, "the worker looks again then"
    session.execute(READY, [0, 1])
    [taken] = strategies.claim(session, claimer, 1)
    assert taken.priority == 0
    is_over(claimer)
    [taken] = strategies.claim(session, claimer, 1)
    assert taken.priority == 9


@pytest.mark.usefixtures("long_walks")
def test_but_not_in_a_worker_that_ends_when_nothing_is_due(session, monkeypatch):
    claimer = exhausted(session, monkeypatch, is_burst=True)
    session.execute(READY, [9, 1])
    [taken] = strategies.claim(session, claimer, 1)
    assert taken.priority == 9
    assert strategies.claim(session, claimer, 1) == []
    assert claimer.has_been_round


@pytest.mark.usefixtures("long_walks")
def test_after_one_that_found_nothing_the_others_claim_what_becomes_due(session):
    walker = Claimer("w1")
    assert strategies.claim(session, walker, 1) == []
    other = Claimer("w2", walks=walker.walks)
    session.execute(READY, [0, 1])
    session.execute("INSERT INTO tasks_task (task_path, run_after) VALUES ('late', now() - interval '1 minute')")
    [taken] = strategies.claim(session, other, 5)
    assert (taken.task_path, strategies.claim(session, other, 5)) == ("a", [])
    walker.walks.next_at = time.monotonic()
    [taken] = strategies.claim(session, walker, 5)
    assert taken.task_path == "late"


@pytest.mark.usefixtures("long_walks")
def test_so_does_who_has_walked_and_claimed_nothing_yet(session, monkeypatch):
    claimer = Claimer("w1")
    assert strategies.claim(session, claimer, 1) == []
    monkeypatch.setattr(shortcut, "_claim_from_front", pytest.fail)
    session.execute(READY, [0, 1])
    assert len(strategies.claim(session, claimer, 1)) == 1


@pytest.mark.usefixtures("long_walks")
def test_after_one_that_found_a_task_the_others_walk_too(session):
    """Older tasks may be left."""
    session.execute(READY, [0, 2])
    session.execute("UPDATE tasks_task SET run_after = now() - interval '1 day' WHERE status = 'READY'")
    one = Claimer("w1")
    one.walks.next_at = time.monotonic()  # as after a walk that found nothing
    other = Claimer("w2", walks=one.walks)
    assert [len(strategies.claim(session, claimer, 1)) for claimer in (one, other)] == [1, 1]


def test_what_others_have_taken_since_then_is_passed_over(bloated, session, monkeypatch):
    claimer = exhausted(session, monkeypatch)
    bloated.rows(READY, 0, 20_000)
    bloated.rows(DONE)
    session.execute(READY, [0, 1])
    behind = behind_params(claimer, claimer.shortcut, 1, may_be_alone=True)
    plan = explain(session, shortcut.CLAIM_BEHIND, behind | {"age": 0.0})
    without = explain(session, shortcut.CLAIM_BEHIND, behind | {"age": None})
    assert 5 * pages(plan) < pages(without)


def test_each_queue_and_priority_has_an_end_of_its_own(session, monkeypatch):
    monkeypatch.setattr(shortcut, "SLOW_SECONDS", -1)
    claimer = Claimer("w1", ["mail", "default"])
    for queue, priority in (("default", 0), ("default", 5), ("mail", 5)):
        session.execute(
            "INSERT INTO tasks_task (task_path, queue_name, priority) VALUES ('a', %s, %s)", [queue, priority]
        )
        assert len(strategies.claim(session, claimer, 1)) == 1
        assert strategies.claim(session, claimer, 1) == []
    assert list(claimer.shortcut.ends) == [("mail", 5), ("default", 5), ("default", 0)], "in the order of the line"


def test_only_the_latest_ends_are_remembered(session, monkeypatch):
    claimer = Claimer("w1")
    for priority in range(shortcut.MOST_LINES + 3):
        session.execute(READY, [priority, 1])
        strategies.claim(session, claimer, 1)
    assert [priority for _, priority in claimer.ends] == list(range(3, shortcut.MOST_LINES + 3))


@pytest.fixture
def cancelled(session, monkeypatch):
    """Makes each walk meet the statement's timeout, for a claimer that has claimed nothing yet."""
    session.execute("SET statement_timeout = '50ms'")
    monkeypatch.setattr(shortcut, "CLAIM_PLAIN", "SELECT pg_sleep(60)")
    monkeypatch.setattr(shortcut, "ENDLESS_SECONDS", 0)

    def claim(**options):
        claimer = Claimer("w1", **options)
        with pytest.raises(psycopg.errors.QueryCanceled):
            strategies.claim(session, claimer, 1)
        return claimer

    return claim


def test_after_a_walk_that_met_its_timeout_new_tasks_are_claimed_without_one(session, cancelled):
    session.execute(READY, [0, 1])
    claimer = cancelled()
    session.execute(READY, [9, 1])
    taken = [claim.priority for _ in range(2) for claim in strategies.claim(session, claimer, 1)]
    assert taken == [9, 0]
    assert strategies.claim(session, claimer, 1) == []
    assert 0 < claimer.look_in <= shortcut.CANCELLED_SECONDS
    is_over(claimer)
    with pytest.raises(psycopg.errors.QueryCanceled):
        strategies.claim(session, claimer, 1)


def test_the_other_workers_of_its_supervisor_make_none_either(session, cancelled):
    other = Claimer("w2", walks=cancelled().walks)
    session.execute(READY, [0, 1])
    assert len(strategies.claim(session, other, 1)) == 1
    is_over(other, may_walk=False)
    assert not shortcut.is_walk_due(other)
    assert strategies.claim(session, other, 1) == []


def test_while_one_of_them_tries_again_the_others_do_not(session, cancelled, monkeypatch):
    one = cancelled()
    one.walks.next_at = time.monotonic()
    other = Claimer("w2", walks=one.walks)
    session.execute(READY, [0, 1])

    def walk(*args):
        assert len(strategies.claim(session, other, 1)) == 1
        return []

    monkeypatch.setattr(shortcut, "_claim_from_front", walk)
    assert strategies.claim(session, one, 1) == []


def test_those_of_other_queues_and_those_that_wait_for_long_are_not(session, cancelled):
    session.execute("INSERT INTO tasks_task (task_path, queue_name) VALUES ('a', 'mail'), ('a', 'other')")
    session.execute("UPDATE tasks_task SET run_after = now() - interval '1 hour' WHERE queue_name = 'other'")
    session.execute("UPDATE tasks_task SET queue_name = 'mail' WHERE queue_name = 'other'")
    session.execute("INSERT INTO tasks_task (task_path, queue_name) VALUES ('a', 'other')")
    claimer = cancelled(queues=["mail"])
    [taken] = strategies.claim(session, claimer, 5)
    assert taken.queue_name == "mail"


def test_a_worker_that_ends_when_nothing_is_due_tries_the_walk_again(session, cancelled):
    with pytest.raises(psycopg.errors.QueryCanceled):
        strategies.claim(session, cancelled(is_burst=True), 1)


def test_a_walk_that_a_person_cancels_is_made_again_at_once(session, cancelled, monkeypatch):
    monkeypatch.setattr(shortcut, "ENDLESS_SECONDS", 60)
    with pytest.raises(psycopg.errors.QueryCanceled):
        strategies.claim(session, cancelled(), 1)
