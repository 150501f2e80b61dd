"""The audit page: what it shows, finds and leads to, and that it stays fast and silent about nothing."""

import csv
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from dashboard.templatetags.rowlock import target_href
from dashboard.views.audit import SINCE_ID, AuditFilter, bounds
from tasks import operations
from tasks.models import Intervention
from tasks.operations import Settings
from tasks.operations.search import PageCursor, find
from tasks.support import audit
from tasks.support.audit import Change, Who
from tests.html import flat
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db
AUDIT = "/admin/ops/audit/"
MANY = """
INSERT INTO tasks_intervention (at, actor, source, action, target)
SELECT statement_timestamp() - make_interval(mins => %(number)s - i), 'script', 'command', 'requeue', 'task:' || i
FROM generate_series(1, %(number)s) AS i
"""


@pytest.fixture
def viewer():
    return client_of("Viewers")


def record(action: str = "cancel", target: str = "task:1", *, actor: str = "anna", days: int = 0) -> int:
    """One entry, of so many days ago; its id."""
    entry = Intervention.objects.create(
        at=timezone.now() - timedelta(days=days), actor=actor, source="page", action=action, target=target
    )
    return entry.pk


def shown(client, query: str = "") -> list[int]:
    return [int(entry.id) for entry in client.get(AUDIT + query).context["entries"]]


def test_an_entry_says_who_what_why_from_where_and_the_versions(viewer):
    audit.record(connection, Who("root@db1", "command"), "requeue", [Change("task:4711", 4, 5)], "card works again")
    page = flat(viewer.get(AUDIT).text)
    for text in ("root@db1", "command", "requeue", "/admin/tasks/task/4711/", "v4 → v5", "card works again"):
        assert text in page


def test_what_people_do_on_pages_appears_here(viewer):
    task = rows.failed()
    operations.requeue([task.pk], Who("anna", "page"), Settings(reason="again"))
    assert f"task:{task.pk}" in viewer.get(AUDIT).text


def test_without_entries_it_says_what_will_stand_here(viewer):
    assert "No intervention yet" in viewer.get(AUDIT).text
    assert "No intervention matches this filter." in viewer.get(f"{AUDIT}?actor=otto").text


@pytest.mark.parametrize(
    "query",
    ["actor=otto", "action=edit", "action=edit+priority%3D5", "target=task:7", "target=%237", "target=7", "since=3d",
     "actor=otto&action=edit&since=3d"],
)  # fmt: skip
def test_each_filter_finds_its_entries_alone(viewer, query):
    record(days=9)
    wanted = record("edit priority=5", "task:7", actor="otto")
    Intervention.objects.filter(pk=wanted)
    record("editorial", "task:70", actor="ottoline", days=8)
    assert shown(viewer, f"?{query}") == [wanted]


def test_since_may_be_a_time(viewer):
    record(days=9)
    wanted = record()
    at = (timezone.now() - timedelta(days=1)).isoformat().replace("+", "%2B")
    assert shown(viewer, f"?since={at}") == [wanted]
    assert shown(viewer, "?since=2999-01-01T00:00Z") == []


def test_a_time_may_end_too(viewer):
    record(days=9)
    wanted = record(days=5)
    record()
    assert shown(viewer, "?since=7d&until=2d") == [wanted]
    assert shown(viewer, "?until=1d&since=2d") == shown(viewer, "?until=2000-01-01T00:00") == []


def test_enqueues_are_folded_away_and_counted(viewer):
    older = record()
    folded = [record(action) for action in ("enqueue", "enqueue count=3 last_id=9")]
    newest = record("requeue", "task:2", actor="otto")
    page = viewer.get(AUDIT)
    assert [int(entry.id) for entry in page.context["entries"]] == [newest, older]
    assert "▸ 2 enqueues" in flat(page.text)
    assert shown(viewer, page.context["unfold"]) == [newest, *folded[::-1], older]
    assert viewer.get(f"{AUDIT}?actor=otto").context["folded"] == 0
    assert shown(viewer, "?action=enqueue") == folded[::-1]
    assert shown(viewer, "?target=task:1") == [*folded[::-1], older]


def test_the_enqueues_of_a_page_are_those_between_its_entries(viewer):
    for number in range(60):
        record(target=f"task:{number}"), record("enqueue")
    first = viewer.get(AUDIT)
    second = viewer.get(AUDIT + first.context["links"]["older"])
    assert (first.context["folded"], second.context["folded"]) == (50, 10)


def test_the_rows_come_as_a_file_without_formulas(viewer):
    record("cancel", "task:1", actor="=cmd|x")
    record("cancel", "task:2"), record("enqueue")
    answer = viewer.get(f"{AUDIT}?format=csv")
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    names, *found = csv.reader(answer.text.splitlines())
    assert [dict(zip(names, row, strict=True))["target"] for row in found] == ["task:2", "task:1"]
    assert found[1][1] == "'=cmd|x"


@pytest.mark.parametrize(
    "query", ["since=yesterday", "until=soon", "since=2026-13-40", "before=x", "before=1&after=2", "actor=%00"]
)
def test_a_filter_that_cannot_be_read_is_a_400_that_says_why(viewer, query):
    page = viewer.get(f"{AUDIT}?{query}")
    assert page.status_code == 400
    assert "errornote" in page.text


def test_the_newest_come_first_and_pages_join_without_a_gap(viewer):
    made = [record(target=f"task:{number}") for number in range(120)]
    found, query = [], "?actor=anna"
    while query:
        page = viewer.get(AUDIT + query)
        found += [int(entry.id) for entry in page.context["entries"]]
        query = page.context["links"]["older"]
    assert found == made[::-1]
    assert "actor=anna" in viewer.get(f"{AUDIT}?actor=anna").context["links"]["older"]


@pytest.mark.parametrize(
    ("target", "href"),
    [("task:4711", "/admin/tasks/task/4711/"), ("order:5", "/admin/orders/order/5/change/"),
     ("queue:a b", "/admin/tasks/task/?queue=a+b"), ("worker:w7f", "/admin/tasks/task/?worker=w7f"),
     ("lock:nightly", "/admin/ops/schedule/"), ("lab run:6", "/admin/ops/lab/6/"),
     ("table:tasks_task", ""), ("task:x", ""), ("nonsense", "")],
)  # fmt: skip
def test_a_target_leads_to_its_page(target, href):
    assert target_href(target) == href


def test_who_may_not_see_it_is_told_the_right():
    page = client_of().get(AUDIT)
    assert page.status_code == 403
    assert "tasks.view_intervention" in page.text


def test_a_search_whose_time_is_over_says_so_and_goes_on_from_there(viewer, monkeypatch):
    with connection.cursor() as cursor:
        cursor.execute(MANY, {"number": 100})
    monkeypatch.setattr("tasks.operations.search.SEARCH_SECONDS", 0.0)
    page = viewer.get(f"{AUDIT}?actor=nobody")
    assert "has not checked everything yet" in page.text
    assert page.context["links"]["older"]


def test_the_time_is_found_without_reading_what_is_older(django_assert_max_num_queries):
    """Ten thousand minutes of entries, of which an hour is asked for: halving touches some fourteen of the others."""
    with connection.cursor() as cursor:
        cursor.execute(MANY, {"number": 10_000})
        highest = Intervention.objects.latest("pk").pk
        lowest, top = bounds(AuditFilter(since="1h"))
        assert (top, highest - 125 < lowest <= highest - 60) == (highest, True)
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT TEXT) {SINCE_ID}", {"since": timezone.now()})
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "Seq Scan on tasks_intervention" not in plan
    with django_assert_max_num_queries(8):
        found = find(AuditFilter(since="1h"), PageCursor(), bounds=bounds)
    assert len(found.rows) == 50


def test_the_queries_do_not_grow_with_the_entries(viewer, django_assert_max_num_queries):
    for number in range(60):
        record(target=f"task:{number}")
    with django_assert_max_num_queries(25):
        viewer.get(AUDIT)


def test_only_what_is_found_quickly_refreshes_itself(viewer):
    record()
    assert "data-live" in viewer.get(AUDIT).text
    assert "data-live" in viewer.get(f"{AUDIT}?target=task:1").text
    assert "data-live" in viewer.get(f"{AUDIT}?actor=anna").text
    assert "data-live=" not in viewer.get(f"{AUDIT}?action=cancel").text
    assert "data-live=" not in viewer.get(f"{AUDIT}?actor=anna&action=cancel").text
    assert "data-live=" not in viewer.get(f"{AUDIT}?actor=anna&since=3d").text
    assert "<html" not in viewer.get(AUDIT, headers={"HX-Request": "true"}).text


def test_hostile_words_are_shown_as_text(viewer):
    hostile = "<script>alert(1)</script>"
    audit.record(connection, Who(hostile, "page"), hostile, [Change(f"queue:{hostile}")], hostile)
    assert "<script>alert" not in viewer.get(AUDIT).text
    assert "<script>alert" not in viewer.get(AUDIT, {"actor": hostile, "target": hostile}).text
