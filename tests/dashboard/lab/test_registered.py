"""A pattern that an app has registered with a sample is an entry of the lab, measured by the run of its button."""

import importlib
import sys

import pytest

from dashboard.lab import runner
from dashboard.lab.patterns import PATTERNS
from dashboard.lab.requests import LabForm
from dashboard.lab.schema import LabRefused
from dashboard.lab.worker import Plan, item_of
from tasks import patterns
from tests import commands
from tests.dashboard.lab.live import rows_unchanged
from tests.people import client_of

pytestmark = pytest.mark.django_db(transaction=True)
APP = "tests.dashboard.lab.greeting"


@pytest.fixture(autouse=True)
def _registered(monkeypatch, settings):
    """The app of this folder, in this process and in those that it starts."""
    settings.ROWLOCK_LAB = True
    monkeypatch.setenv("ROWLOCK_APPS", APP)
    monkeypatch.setattr(patterns, "_registered", dict(patterns._registered))
    importlib.import_module(f"{APP}.tasks")
    yield
    del sys.modules[f"{APP}.tasks"]  # the next test registers them again


def test_it_is_an_entry_where_it_can_make_rows():
    assert {"greet_users", "greet_and_stumble"} < set(PATTERNS)
    assert "greet_without_sample" not in PATTERNS
    assert PATTERNS["greet_users"].subject == "auth.User"
    assert ("greet_users", "greet_users") in LabForm().fields["patterns"].choices
    page = client_of("Viewers").get("/admin/ops/lab/patterns/").text
    assert "Greets each new user." in page
    assert "registered by the app auth" in page
    assert "def greet(user: User)" in page


def test_shipped_emails_have_one_entry_and_it_is_not_their_second():
    assert patterns.get("shipped_emails").sample
    assert "shipped_emails" not in PATTERNS
    assert PATTERNS["double_checked"].stands_for == "shipped_emails"


def test_a_built_in_one_keeps_its_name():
    patterns.register_pattern("unsafe", patterns.get("greet_users").queryset, print, sample=print)
    assert PATTERNS["unsafe"].registered is None
    assert list(PATTERNS).count("unsafe") == 1
    assert len(list(PATTERNS)) == len(PATTERNS)


def test_its_own_code_is_run_on_copies_of_its_tables():
    """Two processes and somebody who locks the same rows: each user once; nobody's live account changes."""
    argv = ["greet_users", "--workers", 2, "--outside-lockers", 1, "--items", 12, "--work-ms", 5, "--json"]
    with rows_unchanged():
        outcome = commands.run("run_pattern", *argv)
    assert outcome.status == 0, outcome.stderr
    numbers = outcome.data
    assert (numbers["processed"], numbers["duplicates"], numbers["lost_work"]) == (12, 0, 0), numbers
    assert numbers["is_clean"]
    assert sum(numbers["share"].values()) == 12


def test_code_that_fails_is_told_and_its_row_is_not_called_done():
    with rows_unchanged():
        result = runner.run(Plan("greet_and_stumble", workers=1, items=3, work_ms=0)).result
    assert result.stopped.startswith("worker 0 ended with an error: BodyFailed: Row 1: ValueError: this one is shy")
    assert (result.processed, result.lost_work, result.is_clean) == (3, 1, False), result


def test_a_sample_that_makes_other_rows_is_refused():
    with rows_unchanged(), pytest.raises(LabRefused, match="make 4 rows that meet its criteria, and there are 3"):
        runner.run(Plan("greet_too_few", workers=1, items=4))


def test_keys_that_are_no_numbers_have_one_all_the_same():
    assert item_of("5f1c") == item_of("5f1c") < 2**63
    assert item_of("5f1c") != item_of("5f1d")
