"""Registered patterns: an adopter's own model gets a run, a task and a command."""

import pytest
from django.contrib.auth.models import User
from django.db import NotSupportedError, transaction

from tasks import patterns, testing
from tasks.commands.pattern import PatternCommand
from tasks.patterns import Choice, UnknownPattern, register_pattern
from tasks.tasks import run_registered_pattern
from tests.commands import run_command
from tests.sessions import session

pytestmark = pytest.mark.django_db(transaction=True)
INACTIVE = User.objects.filter(is_active=False)


def greet(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=True)


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """What a test registers is gone with it."""
    monkeypatch.setattr(patterns, "_registered", dict(patterns._registered))


@pytest.fixture
def greeting() -> patterns.Pattern:
    return register_pattern("greet_users", INACTIVE, greet, description="Greets 100% of the new users.")


@pytest.fixture
def users() -> list[User]:
    return [User.objects.create(username=name, is_active=False) for name in ("anna", "bert", "cara")]


class Greet(PatternCommand):
    pattern = "greet_users"


class TestRegistering:
    def test_the_words_and_the_right_come_from_the_name_and_the_model(self, greeting):
        assert patterns.get("greet_users") is greeting
        assert (greeting.label, greeting.permission) == ("Greet users", "auth.change_user")
        assert greeting in patterns.of_model(User)

    def test_shipped_emails_is_its_first_user(self):
        shipped = patterns.get("shipped_emails")
        assert (shipped.action, shipped.permission) == ("ship-emails", "orders.ship_order")
        assert list(shipped.choices[0].values) == ["send_first", "mark_first"]

    @pytest.mark.parametrize("name", ["", "Greet", "greet-users", "1st", "x" * 64, "größe"])
    def test_a_name_that_is_none(self, name):
        with pytest.raises(ValueError, match="is not a pattern's name"):
            register_pattern(name, INACTIVE, greet)

    def test_a_name_that_is_taken(self, greeting):
        with pytest.raises(ValueError, match="already"):
            register_pattern("greet_users", INACTIVE, greet)

    def test_rows_that_cannot_be_locked_are_refused_here_and_now(self):
        with pytest.raises(NotSupportedError, match="sliced"):
            register_pattern("greet_users", INACTIVE[:5], greet)

    def test_either_a_body_or_a_run(self, greeting):
        for given in (
            {},
            {"body": greet, "run": greeting.run},
            {"body": greet, "choices": (Choice("a", "A", {}, ""),)},
        ):
            with pytest.raises(TypeError, match="either a body or a run"):
                register_pattern("other", INACTIVE, **given)

    def test_an_unknown_one_is_told_with_the_known_ones(self, greeting):
        with pytest.raises(UnknownPattern, match=r"Registered: .*greet_users, shipped_emails"):
            patterns.get("nothing")


class TestRunning:
    def test_each_row_once(self, greeting, users):
        report = greeting.run()
        assert (report.done, report.failure, report.problems) == (3, "", [])
        assert not INACTIVE.exists()

    def test_a_dry_run_locks_and_lets_go(self, greeting, users):
        seen = []
        report = greeting.run(dry_run=True, progress=lambda rows: seen.append(rows.done))
        assert (report.done, seen, INACTIVE.count()) == (3, [1, 2, 3], 3)

    def test_the_task_gives_the_report(self, greeting, users):
        run_registered_pattern.enqueue("greet_users", limit=2)
        [result] = testing.run_due()
        assert (result.return_value["done"], INACTIVE.count()) == (2, 1)

    def test_a_worker_that_holds_a_transaction_around_the_task_is_told(self, greeting, users):
        with pytest.raises(RuntimeError, match="--strategy is not pessimistic"), transaction.atomic():
            greeting.run()


class TestCommand:
    def test_it_runs_the_pattern(self, greeting, users):
        outcome = run_command(Greet(), "--json", "--limit", 2)
        assert (outcome.status, outcome.data["done"], outcome.data["candidates"]) == (0, 2, 2)

    def test_a_failing_row_is_a_failure_that_names_it(self, users):
        def body(user):
            greet(user)
            if user.username == "bert":
                raise ValueError("shy")

        register_pattern("greet_users", INACTIVE, body)
        outcome = run_command(Greet(), "--json")
        assert (outcome.status, outcome.data["done"], outcome.data["failed"]) == (1, 2, 1)
        assert outcome.data["failures"] == [{"id": users[1].pk, "error": "ValueError: shy"}]
        assert f"Row {users[1].pk}: ValueError: shy." in outcome.stderr

    def test_a_held_row_is_told_with_its_holder(self, greeting, users):
        with session("psql") as other:
            other.execute("SELECT FROM auth_user WHERE id = %s FOR UPDATE", [users[0].pk])
            outcome = run_command(Greet(), "--json", "--on-locked", "report")
        assert outcome.data["locked"][0]["id"] == users[0].pk
        assert "psql" in outcome.data["locked"][0]["holder"]

    def test_its_help_is_the_description(self, greeting):
        assert "Greets 100% of the new users." in run_command(Greet(), "--help").stdout

    def test_a_choice_is_an_option(self, users):
        seen = []

        def whole_run(*, tone, **options):
            seen.append(tone)
            return greeting.run(**options)

        greeting = register_pattern("plain", INACTIVE, greet)
        register_pattern(
            "greet_users",
            INACTIVE,
            run=whole_run,
            choices=(Choice("tone", "Tone", {"warm": "100%", "cool": "0%"}, "warm"),),
        )
        assert run_command(Greet(), "--tone", "cool").status == run_command(Greet()).status == 0
        assert seen == ["cool", "warm"]
