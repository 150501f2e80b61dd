"""How many tasks match, told before a bulk action: exact where an index has them, else as far as the time allows."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tasks.operations import bulk
from tasks.operations.bulk import highest_id, tally
from tasks.operations.filters import TaskFilter
from tests.tasks import handlers, rows
from tests.tasks.bulk import FAILED

pytestmark = pytest.mark.django_db


def test_matches_are_counted_by_status():
    rows.failed(), rows.failed(), rows.ready(), rows.failed(queue_name="other")
    found = tally(TaskFilter(queue_names=("default",)), highest_id())
    assert (dict(found.by_status), found.number, found.is_complete) == ({"FAILED": 2, "READY": 1}, 3, True)


def test_windows_join_without_a_gap_or_an_overlap(monkeypatch):
    monkeypatch.setattr(bulk, "FIRST_WINDOW", 2)
    rows.many(37, status="READY")
    assert tally(TaskFilter(queue_names=("default",)), highest_id()).number == 37


def test_what_an_index_has_is_counted_at_once_and_not_window_by_window(monkeypatch):
    monkeypatch.setattr(bulk, "FIRST_WINDOW", 2)
    rows.many(37, status="READY"), rows.failed(), rows.completed()
    unfinished = TaskFilter(statuses=("READY", "FAILED"))
    with CaptureQueriesContext(connection) as queries:
        found = tally(unfinished, highest_id())
    assert (dict(found.by_status), found.is_complete) == ({"READY": 37, "FAILED": 1}, True)
    assert len([query for query in queries if "COUNT" in query["sql"]]) == 2


def test_where_that_takes_too_long_the_windows_tell_as_much_as_they_can(monkeypatch):
    monkeypatch.setattr(bulk, "_count_each", lambda *_args: None)
    rows.many(3, status="READY")
    assert tally(TaskFilter(statuses=("READY",)), highest_id()).number == 3


def test_it_stops_when_its_time_is_over_and_says_so():
    rows.failed()
    found = tally(FAILED, highest_id(), seconds=0)
    assert (found.number, found.is_complete) == (0, False)


def test_a_number_tells_nothing_of_secrets():
    rows.failed(task_path=handlers.log_in.module_path, kwargs={"password": "swordfish"})
    assert tally(TaskFilter(text="swordfish"), highest_id()).number == 0
