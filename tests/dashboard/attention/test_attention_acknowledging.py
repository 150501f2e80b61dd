"""Acknowledging a line: who may, what it needs, when the line comes back, and what the audit keeps of it."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError
from django.utils import timezone

from dashboard.attention import inbox
from dashboard.models import Acknowledgement
from tasks.models import Attempt, Intervention, Task
from tasks.panels import AttentionLine, Severity, Snapshot
from tasks.support.audit import Who
from tests.commands import run
from tests.people import client_of, person
from tests.tasks import rows

pytestmark = pytest.mark.django_db
FORM, ACKNOWLEDGE, WITHDRAW = (
    "/admin/ops/attention/",
    "/admin/ops/attention/acknowledge/",
    "/admin/ops/attention/withdraw/",
)
KEY = "failed:app.charge:Declined"


@pytest.fixture(autouse=True)
def failures() -> None:
    fail(3)


def fail(number: int) -> None:
    for task in [rows.failed(task_path="app.charge") for _ in range(number)]:
        Attempt.objects.create(task=task, number=5, worker_id="w", outcome="failed", exception_class="Declined")


def form(**changes: str) -> dict[str, str]:
    return {"line": KEY, "size": "3", "lasts": "grows", "reason": "the bank knows", **changes}


def post(*groups: str, follow: bool = True, **changes: str) -> Any:
    return client_of(*(groups or ("Operators",))).post(ACKNOWLEDGE, form(**changes), follow=follow)


def seen() -> tuple[list[str], list[str]]:
    """The keys of the lines, and those of the acknowledged ones."""
    found = inbox.gather(Snapshot(), person("Viewers", username="viewer").has_perm)
    return [line.key for line in found.lines], [known.line.key for known in found.known]


def test_an_acknowledged_line_stands_apart_with_its_name_and_reason():
    assert seen() == ([KEY], [])
    content = post().content.decode()
    assert seen() == ([], [KEY])
    assert "by anna, until it is more than 3: the bank knows" in " ".join(content.split())


def test_it_comes_back_when_it_grows():
    post()
    fail(1)
    assert seen() == ([KEY], [])


def test_it_ends_with_its_trouble_and_does_not_hide_the_next_one():
    post()
    Task.objects.all().delete()
    assert seen() == ([], [])
    fail(1)
    assert seen() == ([KEY], []), "smaller, but not what was acknowledged"


def test_part_of_the_trouble_solved_leaves_it_acknowledged():
    post()
    Task.objects.latest("id").delete()
    assert seen() == ([], [KEY])


def test_growth_since_the_person_looked_is_not_acknowledged():
    fail(1)
    post(size="3")
    assert seen() == ([KEY], [])


def test_it_comes_back_when_its_time_is_over():
    post(lasts="8h")
    fail(5)
    assert seen() == ([], [KEY]), "a time holds however much it grows"
    Acknowledgement.objects.update(until=timezone.now() - timedelta(seconds=1))
    assert seen() == ([KEY], [])


def test_a_withdrawn_acknowledgement_ends_at_once():
    post()
    client_of("Operators").post(WITHDRAW, {"line": KEY})
    assert seen() == ([KEY], [])
    assert [row.action for row in Intervention.objects.order_by("id")] == ["acknowledge until_more_than=3", "withdraw"]


def test_it_leaves_one_intervention_even_under_a_double_click():
    for _ in range(2):
        post(lasts="8h")
    row = Intervention.objects.get()
    assert (row.actor, row.source, row.action, row.reason) == ("anna", "page", "acknowledge for=8h", "the bank knows")
    assert row.target == f"attention:{KEY}"


def test_nor_under_one_that_begins_in_one_minute_and_ends_in_the_next():
    at = timezone.now().replace(second=0, microsecond=0) + timedelta(hours=1)
    for end in (at - timedelta(seconds=5), at + timedelta(seconds=5)):
        acknowledge_until(end)
    assert Intervention.objects.count() == 1


@pytest.mark.parametrize("minutes", [-60, -1, 2, 60])
def test_another_time_is_another_one(minutes):
    now = timezone.now()
    for end in (timedelta(hours=8), timedelta(hours=8, minutes=minutes)):
        acknowledge_until(now + end)
    assert Intervention.objects.count() == 2


def acknowledge_until(end: datetime) -> None:
    line = AttentionLine(key=KEY, text="", severity=Severity.SLOW)
    inbox.acknowledge(line, Who("anna", "page"), reason="known", lasts=end - timezone.now(), size=None)


@pytest.mark.parametrize("group", ["Viewers", "Account managers"])
def test_only_operators_acknowledge(group):
    for address in (ACKNOWLEDGE, WITHDRAW):
        answer = client_of(group).post(address, form())
        assert answer.status_code == 403
        assert b"dashboard.acknowledge" in answer.content
    assert not Acknowledgement.objects.exists()


def test_a_viewer_sees_the_form_with_the_right_that_is_missing():
    content = client_of("Viewers").get(FORM, {"line": KEY}).content.decode()
    assert "disabled" in content
    assert "dashboard.acknowledge" in content


def test_it_needs_a_reason():
    answer = post(reason="  ")
    assert answer.status_code == 400
    assert b"needs a reason" in answer.content
    assert not Acknowledgement.objects.exists()


@pytest.mark.parametrize(
    "wrong", [{"size": "-1"}, {"size": "x"}, {"size": "9" * 30}, {"lasts": "for ever"}, {"line": ""}, {"line": "a\0b"}]
)
def test_a_form_that_no_page_made_is_refused(wrong):
    assert post(**wrong).status_code == 400
    assert not Acknowledgement.objects.exists()


def test_a_line_that_is_over_is_not_acknowledged():
    content = post(line="failed:app.other:Gone").content
    assert b"That line is gone" in content
    assert not Acknowledgement.objects.exists()


def test_a_get_writes_nothing():
    for address in (ACKNOWLEDGE, WITHDRAW):
        assert client_of("Operators").get(address).status_code == 405


def test_a_very_long_key_is_cut_and_stays_unique():
    lines = [AttentionLine(key="failed:" + "x" * 5000 + end, text="", severity=Severity.SLOW) for end in "ab"]
    assert [len(line.name) for line in lines] == [300, 300]
    assert lines[0].name != lines[1].name


def test_what_is_over_for_long_is_pruned_and_nothing_else():
    for name, days, size in (("over", -8, None), ("over of late", -6, None), ("still", 1, None), ("grows", None, 5)):
        until = None if days is None else timezone.now() + timedelta(days=days)
        Acknowledgement.objects.create(line=name, actor="anna", reason="known", until=until, size=size)
    outcome = run("prune_history", "--older-than", "7d", "--json")
    assert outcome.data["tables"]["acknowledgements"] == 1
    assert set(Acknowledgement.objects.values_list("line", flat=True)) == {"over of late", "still", "grows"}


def test_the_database_refuses_one_that_never_ends():
    with pytest.raises(IntegrityError):
        Acknowledgement.objects.create(line="x", actor="anna", reason="for ever")
