"""`show_attention` and `acknowledge`: what the overview tells and does, for cron and terminals."""

import pytest

from dashboard.models import Acknowledgement
from tasks.models import Attempt, Intervention
from tests.commands import run
from tests.tasks import rows

pytestmark = pytest.mark.django_db
KEY = "failed:app.charge:Declined"


@pytest.fixture
def failure() -> None:
    task = rows.failed(task_path="app.charge")
    Attempt.objects.create(task=task, number=5, worker_id="w", outcome="failed", exception_class="Declined")


def test_a_good_night_is_healthy():
    outcome = run("show_attention", "--json")
    assert (outcome.status, outcome.data) == (0, {"lines": [], "acknowledged": []})
    assert run("show_attention").stdout == "Nothing needs attention.\n"


def test_trouble_is_unhealthy_and_says_what_to_type(failure):
    outcome = run("show_attention", "--json")
    [line] = outcome.data["lines"]
    assert (outcome.status, line["line"], line["severity"], line["size"]) == (3, KEY, "losing", 1)
    text = run("show_attention")
    assert "! app.charge failed once: Declined." in text.stdout
    assert f"$ {line['command']}" in text.stdout
    assert "1 line needs a person." in text.stderr


def test_what_is_acknowledged_is_healthy_again(failure):
    outcome = run("acknowledge", KEY, "--until-it-grows", "--reason", "known", "--json")
    assert (outcome.status, outcome.data) == (0, {"acknowledged": True, "line": KEY})
    seen = run("show_attention", "--json")
    assert (seen.status, seen.data["lines"]) == (0, [])
    assert seen.data["acknowledged"][0]["until_more_than"] == 1
    row = Intervention.objects.get()
    assert (row.source, row.action, row.reason) == ("command", "acknowledge until_more_than=1", "known")


def test_it_is_shown_again_when_withdrawn(failure):
    run("acknowledge", KEY, "--for", "8h", "--reason", "known")
    assert run("acknowledge", KEY, "--withdraw", "--json").data["withdrawn"] is True
    assert run("show_attention").status == 3


def test_a_dry_run_changes_nothing(failure):
    assert run("acknowledge", KEY, "--for", "8h", "--reason", "known", "--dry-run").status == 0
    assert not Acknowledgement.objects.exists()
    assert not Intervention.objects.exists()


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("--for", "8h"), 2),  # no reason
        (("--reason", "known"), 2),  # no end
        (("--for", "60d", "--reason", "known"), 1),  # too long
        (("--for", "8h", "--until-it-grows", "--reason", "known"), 2),
    ],
)
def test_what_has_no_reason_or_no_end_is_refused(failure, argv, status):
    assert run("acknowledge", KEY, *argv).status == status
    assert not Acknowledgement.objects.exists()


def test_an_unknown_line_is_named():
    outcome = run("acknowledge", "failed:x:y", "--for", "8h", "--reason", "known")
    assert outcome.status == 1
    assert "failed:x:y" in outcome.stderr
