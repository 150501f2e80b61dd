"""What the page of a run says beyond its numbers: the part with the guard, and what keeps the locks."""

import pytest

from dashboard.lab.measure import Result
from dashboard.lab.patterns import BUILT_IN, PATTERNS
from dashboard.lab.worker import Plan
from dashboard.models import LabRun
from tests.html import flat
from tests.people import client_of

pytestmark = pytest.mark.django_db(transaction=True)


def page_of(pattern: str, **numbers: object) -> str:
    """The page of a finished run with these numbers."""
    zeros = dict.fromkeys(Result.__dataclass_fields__, 0) | {"stopped": "", "share": {}, "guarded": None}
    result = zeros | {"pattern": pattern, "items": 60, "processed": 60} | numbers
    run = LabRun.objects.create(
        batch="b" * 22, pattern=pattern, plan=Plan(pattern).as_dict(), state="finished", actor="anna", result=result
    )
    return flat(client_of("Viewers").get(f"/admin/ops/lab/{run.pk}/").text)


def test_the_two_parts_stand_side_by_side():
    guarded = {"items": 60, "processed": 60, "lost_races": 13, "items_per_second": 400.0, "is_clean": True}
    guarded |= {"duplicates": 0, "may_repeat": 0}
    page = page_of("optimistic_claim_as_printed", duplicates=15, guarded=guarded)
    [table] = [part.partition("</table>")[0] for part in page.split('id="lab-guard"')[1:]]
    without, with_guard = table.split("<tr>")[-2:]
    assert "without the version trigger" in without
    assert ">15<" in without
    assert "UNSAFE" in without
    assert "with the version trigger" in with_guard
    assert ">0<" in with_guard
    assert ">13<" in with_guard
    assert "Clean" in with_guard


def test_each_pattern_is_explained_by_its_code_and_the_sql_of_its_latest_run(django_assert_max_num_queries):
    for statement in ("SELECT 'first'", "SELECT 'second'"):
        page_of("double_checked")
        LabRun.objects.filter(pk=LabRun.objects.latest("pk").pk).update(statements=[[statement, 1]])
    client = client_of("Viewers")
    with django_assert_max_num_queries(18):
        page = client.get("/admin/ops/lab/patterns/").text
    assert "SELECT &#x27;second" in page
    assert "SELECT &#x27;first" not in page
    assert "def send_then_mark(self, order: Order)" in page
    assert page.count("Its SQL stands here once it has been run.") == len(PATTERNS) - 1
    assert all(pattern.source_code for pattern in BUILT_IN)


def test_a_pattern_with_all_its_guards_has_one_part():
    page = page_of("double_checked")
    assert "lab-guard" not in page
    assert "Runs on" not in page


def test_a_lock_says_what_keeps_it():
    page = page_of("cache_lock")
    assert "Runs on" in page
    assert "in PostgreSQL, which all processes share; REDIS_URL is not set." in page
