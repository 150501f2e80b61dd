"""The page *Alerts*: thresholds are shown with their defaults, changed by superusers, and refused when wrong."""

import re

import pytest

from dashboard.attention.thresholds import DEFAULTS, USUAL, parser, written
from dashboard.models import Threshold
from tasks.models import Intervention
from tests.commands import run
from tests.html import answers, flat
from tests.people import client_of

pytestmark = pytest.mark.django_db
PAGE, CHANGE = "/admin/ops/alerts/", "/admin/ops/alerts/threshold/"


@pytest.fixture
def root():
    return client_of(is_superuser=True)


def row(client, name: str) -> str:
    [found] = re.findall(rf'<tr id="threshold-{name}">(.*?)</tr>', flat(client.get(PAGE).text))
    return " ".join(re.sub("<[^>]*>", " ", found).split())


def test_every_threshold_has_a_row_with_its_default(root):
    assert re.findall(r'<tr id="threshold-(\w+)">', root.get(PAGE).text) == list(DEFAULTS)
    assert row(root, "late_seconds").startswith("A due task is late after, in a queue without an objective 5 min 5 min")
    assert "80 % 80 %" in row(root, "connections_percent")


def test_one_is_changed_after_a_question_and_given_its_default_again(root):
    form = root.post(CHANGE, {"name": "late_seconds"}).text
    assert "1s to 1w, or empty for the default, 5m" in flat(form)
    assert not Threshold.objects.exists()
    fields = {"name": "late_seconds", "confirmed": "1", "value": "10m", "reason": "reports"}
    assert "The threshold was changed." in answers(root.post(CHANGE, fields, follow=True).text)
    assert Threshold.objects.values_list("name", "value", "actor").get() == ("late_seconds", 600, "anna")
    assert "10 min 5 min anna" in row(root, "late_seconds")
    assert 'value="10m"' in root.post(CHANGE, {"name": "late_seconds"}).text
    assert "was like that already" in root.post(CHANGE, fields, follow=True).text
    root.post(CHANGE, {"name": "late_seconds", "confirmed": "1", "value": ""})
    assert not Threshold.objects.exists()
    assert list(Intervention.objects.order_by("pk").values_list("actor", "source", "action", "target", "reason")) == [
        ("anna", "page", "set value=600", "threshold:late_seconds", "reports"),
        ("anna", "page", "set value=default", "threshold:late_seconds", ""),
    ]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("late_seconds", "5", "is not a duration"),
        ("late_seconds", "8d", "is out of range: write 1s to 1w."),
        ("connections_percent", "101", "a whole number from 10 to 100"),
        ("connections_percent", "many", "a whole number from 10 to 100"),
    ],
)
def test_a_wrong_value_is_told_and_nothing_changes(root, name, value, told):
    answer = root.post(CHANGE, {"name": name, "confirmed": "1", "value": value})
    assert answer.status_code == 400
    assert told in flat(answer.text)
    assert not Threshold.objects.exists()


def test_an_unknown_threshold_is_refused(root):
    assert root.post(CHANGE, {"name": "of_nothing", "confirmed": "1", "value": "1"}).status_code == 400


def test_the_command_does_the_same():
    assert run("configure_threshold", "late_seconds", "10m", "--json", "--reason", "x").data == {
        "name": "late_seconds", "value": "10m", "changed": True,
    }  # fmt: skip
    assert "10m as before" in run("configure_threshold", "late_seconds", "600s").stdout
    assert run("configure_threshold", "late_seconds", "0s").status == 2
    assert run("configure_threshold", "of_nothing", "1").status == 2
    assert run("configure_threshold", "late_seconds", "default", "--dry-run", "--json").data["value"] == "5m"
    assert Threshold.objects.get().value == 600
    assert Intervention.objects.values_list("source", "action").get() == ("command", "set value=600")


@pytest.mark.parametrize("name", USUAL)
def test_what_is_written_reads_back(name):
    assert parser(name)(written(name, USUAL[name])) == USUAL[name]


def test_the_way_there_is_shown_to_whoever_may_go_it(root):
    link, question = f'href="{PAGE}"', "/admin/ops/palette/?q=alert"
    assert link in root.get("/admin/").text
    assert root.get(question).json()["found"] == [{"label": "Alerts", "url": PAGE}]
    operator = client_of("Operators", username="olga")
    assert link not in operator.get("/admin/").text
    assert operator.get(question).json()["found"] == []
    assert operator.get(PAGE).status_code == 403
    assert operator.post(CHANGE, {"name": "late_seconds", "confirmed": "1", "value": "10m"}).status_code == 403
    assert not Threshold.objects.exists()
