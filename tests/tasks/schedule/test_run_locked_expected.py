"""Commands that are expected: remembered by `--expect-every`, overdue when no run succeeds, seen by `queue_status`."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tasks.locking import lock
from tasks.models import CommandRun, ExpectedCommand, Intervention
from tasks.schedule import expectations
from tests.commands import run
from tests.jobs import shell

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = timedelta(hours=1)
GRACE = timedelta(minutes=5)


def ago(duration):
    return timezone.now() - duration


def expected(every=HOUR, **columns):
    defaults = {"since": ago(30 * HOUR), "succeeded_at": None}
    return ExpectedCommand.objects.create(name="job", every=every, **{**defaults, **columns})


def status():
    return run("queue_status", "--json")


def overdue():
    return [command.name for command in expectations.overdue()]


class TestRemembering:
    def test_a_run_remembers_its_rhythm(self):
        shell("true", options=("--expect-every", "5m"))
        kept = ExpectedCommand.objects.get()
        assert (kept.name, kept.every) == ("job", timedelta(minutes=5))
        assert kept.succeeded_at == CommandRun.objects.get().started_at

    def test_a_later_rhythm_replaces_it_and_none_leaves_it(self):
        expected()
        shell("true")
        assert ExpectedCommand.objects.get().every == HOUR
        shell("true", options=("--expect-every", "1d"))
        assert ExpectedCommand.objects.get().every == timedelta(days=1)

    def test_even_a_run_that_finds_the_lock_held_is_expected_from_now_on(self):
        with lock("job", ttl=30):
            assert shell("true", options=("--expect-every", "5m")).status == 75
        assert ExpectedCommand.objects.get().succeeded_at is None

    def test_only_a_success_counts(self):
        kept = expected(succeeded_at=ago(2 * HOUR))
        shell("false")
        with lock("job", ttl=30):
            shell("true")
        kept.refresh_from_db()
        assert kept.succeeded_at < ago(HOUR)


class TestOverdue:
    @pytest.mark.parametrize(
        ("since", "succeeded_at", "is_overdue"),
        [
            (30 * HOUR, None, True),
            (HOUR + GRACE / 2, None, False),
            (30 * HOUR, HOUR + GRACE / 2, False),
            (30 * HOUR, HOUR + 2 * GRACE, True),
            (GRACE, 30 * HOUR, False),
        ],
    )
    def test_it_is_overdue_when_no_success_began_in_its_time(self, since, succeeded_at, is_overdue):
        expected(since=ago(since), succeeded_at=succeeded_at and ago(succeeded_at))
        assert bool(overdue()) == is_overdue

    @pytest.mark.parametrize(("every", "grace"), [(timedelta(seconds=10), timedelta(seconds=1)), (24 * HOUR, GRACE)])
    def test_the_grace_grows_with_the_rhythm_up_to_five_minutes(self, every, grace):
        expected(every=every)
        assert expectations.overdue()[0].grace == grace

    def test_a_run_at_work_is_not_late(self):
        expected()
        with lock("job", ttl=30) as held:
            CommandRun.objects.create(name="job", argv=["x"], fence=held.fence, started_at=ago(HOUR / 2))
            assert overdue() == []

    def test_one_that_works_for_longer_than_its_rhythm_is(self):
        expected()
        with lock("job", ttl=30) as held:
            CommandRun.objects.create(name="job", argv=["x"], fence=held.fence, started_at=ago(2 * HOUR))
            assert overdue() == ["job"]

    def test_a_run_that_died_without_a_word_does_not_count(self):
        expected()
        CommandRun.objects.create(name="job", argv=["x"], fence=1, started_at=ago(HOUR / 2))
        assert overdue() == ["job"]
        with lock("job", ttl=30):
            assert overdue() == ["job"]


class TestQueueStatus:
    def test_it_is_unhealthy_and_names_the_command(self):
        expected()
        outcome = status()
        assert (outcome.status, outcome.data["overdue"]) == (3, ["job"])
        assert "Command job is overdue: a run was due 29 h ago" in outcome.stderr

    def test_a_success_makes_it_healthy(self):
        expected()
        shell("true")
        assert (status().status, status().data["overdue"]) == (0, [])


class TestForgetting:
    def test_a_retired_command_is_overdue_no_more(self):
        expected()
        outcome = run("forget_command", "job", "--json", "--reason", "retired")
        assert (outcome.status, outcome.data) == (0, {"command": "job", "forgotten": True})
        assert status().status == 0
        left = Intervention.objects.get()
        assert (left.action, left.target, left.reason) == ("forget", "command:job", "retired")

    def test_a_dry_run_forgets_nothing(self):
        expected()
        assert run("forget_command", "job", "--dry-run", "--json").data["forgotten"]
        assert (overdue(), Intervention.objects.count()) == (["job"], 0)

    def test_one_that_was_never_expected(self):
        assert run("forget_command", "job", "--json").data["forgotten"] is False
        assert not Intervention.objects.exists()
