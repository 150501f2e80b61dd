"""Schedules: one page answers why a command is overdue and who holds its lock."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from tasks.locking import lock
from tasks.models import CommandRun, ExpectedCommand, Intervention, Lock
from tests.commands import database_url
from tests.html import answers, flat
from tests.lockers import locker
from tests.people import client_of
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
PAGE, RELEASE, FORGET = "/admin/ops/schedule/", "/admin/ops/schedule/release/", "/admin/ops/schedule/forget/"
HOUR = timedelta(hours=1)


def ago(duration):
    return timezone.now() - duration


def ran(name="nightly-report", **columns):
    defaults = {"argv": ["report"], "hostname": "db1", "pid": 4711, "outcome": "succeeded", "exit_status": 0}
    finished = None if columns.get("outcome") == "running" else ago(HOUR)
    return CommandRun.objects.create(
        name=name, started_at=ago(2 * HOUR), finished_at=finished, **{**defaults, **columns}
    )


def expected(name="nightly-report", **columns):
    return ExpectedCommand.objects.create(name=name, **{"every": HOUR, "since": ago(30 * HOUR), **columns})


def acquire(name="nightly-report", ttl="1 hour"):
    """Take the lock as another language would; its fence."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT rowlock_lock_acquire(%s, 'nightly.pl', %s::interval, 'db1', 99)", [name, ttl])
        return cursor.fetchone()[0]


def page(*groups):
    return client_of(*(groups or ("Viewers",))).get(PAGE).content.decode()


def row(name="nightly-report", table="schedule-rows"):
    """One line of the page, without line breaks."""
    [part] = [text.partition("</table>")[0] for text in page().split(f'id="{table}"')[1:]]
    return flat(next(line for line in part.split("<tr ")[1:] if f'title="{name}"' in line))


def locked(name="nightly-report"):
    return row(name, "lock-rows")


class TestTheBoard:
    def test_who_sits_on_an_overdue_report(self):
        expected(succeeded_at=ago(25 * HOUR))
        ran(outcome="skipped", exit_status=75, held_by="db1 pid 99 (nightly.pl)")
        ran(outcome="running", exit_status=None)
        fence = acquire()
        text = row()
        assert "Overdue" in text
        assert "Check cron on its machine first" in page()
        assert ">24 h ago<" in text
        assert "db1 pid 99 (nightly.pl)</span>" in text
        assert "Skipped" in text
        assert "Running" in text
        text = locked()
        assert "db1 pid 99 (nightly.pl)</span>" in text
        assert f'data-label="Fence" class="number">{fence}<' in text
        assert 'data-label="Time left" class="number">59 min<' in text

    def test_overdue_comes_first_then_failed_then_what_is_held(self):
        for name in ("a fine one", "b held", "c failed"):
            ran(name, outcome="failed" if name == "c failed" else "succeeded")
        acquire("b held")
        expected("d overdue")
        names = re.findall(r'<th scope="row"[^>]*title="([^"]+)"', page().partition('id="lock-rows"')[0])
        assert names == ["d overdue", "c failed", "b held", "a fine one"]

    def test_the_last_eight_runs_in_their_order_and_the_last_outcome(self):
        for status in range(10):
            ran(outcome="failed" if status else "succeeded", exit_status=status)
        strip, after = row().split("</ol>")
        assert re.findall(r'title="Failed \(exit (\d)\) ', strip) == [*"23456789"]
        assert '<span class="verdict outcome-failed">Failed (exit 9)</span>' in after

    def test_who_waits_is_shown(self):
        with lock("nightly-report", ttl=30), locker(database_url(), "nightly-report", ttl=30, wait=60) as other:
            wait_until(lambda: f"pid {other.pid}" in locked().split('data-label="Waiting"')[1])

    def test_a_free_lock_and_no_rhythm(self):
        ran()
        assert ">free<" in row()
        assert "No named lock is held." in page()

    def test_hostile_names_are_text(self):
        ran("<script>alert(1)</script>", held_by="<b>", argv=["<i>"], output="<u>out</u>")
        acquire("</td><script>")
        assert "<script>alert" not in page()
        assert "</td><script>" not in page()
        run = CommandRun.objects.get()
        detail = client_of("Viewers").get(f"{PAGE}{run.pk}/").content.decode()
        assert "<u>out" not in detail
        assert "&lt;u&gt;out" in detail

    def test_its_queries_do_not_grow_with_its_lines(self, django_assert_max_num_queries):
        for number in range(30):
            ran(f"job {number}")
            expected(f"job {number}")
            acquire(f"job {number}")
        client = client_of("Viewers")
        with django_assert_max_num_queries(46):
            client.get(PAGE)

    def test_redis_away_is_said_and_the_rest_is_shown(self, monkeypatch):
        monkeypatch.setenv("REDIS_URL", "unix:///nonexistent/redis.sock")
        ran()
        assert "Redis, which keeps the lock, did not answer" in page()
        assert "nightly-report" in page()

    def test_an_empty_one_says_how_to_begin(self):
        assert "run_locked nightly-report --expect-every 1d" in page()

    def test_htmx_gets_the_panel(self):
        panel = client_of("Viewers").get(PAGE, headers={"HX-Request": "true"}).content
        assert b'id="schedule-rows"' in panel
        assert b"<html" not in panel


def test_a_run_shows_what_it_printed():
    run = ran(output="line 1\nline 2", argv=["pg_dump", "my db"], fence=7)
    text = client_of("Viewers").get(f"{PAGE}{run.pk}/").content.decode()
    assert "line 1\nline 2" in text
    assert "pg_dump &#x27;my db&#x27;" in text
    assert client_of("Viewers").get(f"{PAGE}{run.pk + 1}/").status_code == 404


class TestRelease:
    def form(self, number, **changes):
        form = {"name": "nightly-report", "fence": str(number), "reason": "db1 burned down", "confirmed": "1"}
        return {**form, **changes}

    def test_the_page_offers_it_where_nothing_tells_that_the_holder_lives(self):
        acquire()
        assert 'data-action="release-lock"' in page("Lock administrators")

    def test_the_lock_is_freed_with_its_reason_in_the_audit(self):
        fence = acquire()
        answer = client_of("Lock administrators").post(RELEASE, self.form(fence), follow=True)
        assert "The lock nightly-report is free." in answers(answer.text)
        assert Lock.objects.get().owner is None
        left = Intervention.objects.get()
        assert (left.actor, left.source, left.target) == ("anna", "page", "lock:nightly-report")
        assert left.reason == "db1 burned down"

    def test_the_first_post_only_shows_the_holder(self):
        form = self.form(acquire())
        del form["confirmed"]
        answer = client_of("Lock administrators").post(RELEASE, form).content.decode()
        assert "Only its lease tells whether it lives" in answer
        assert "release_lock nightly-report --fence" in answer
        assert Lock.objects.get().owner == "nightly.pl"

    def test_it_needs_a_reason(self):
        answer = client_of("Lock administrators").post(RELEASE, self.form(acquire(), reason=" "))
        assert b"needs a reason" in answer.content
        assert Lock.objects.get().owner == "nightly.pl"

    def test_a_live_holder_keeps_its_lock(self):
        with lock("nightly-report", ttl=30) as held:
            assert 'data-action="release-lock"' not in page("Lock administrators")
            answer = client_of("Lock administrators").post(RELEASE, self.form(held.fence), follow=True)
            assert b"lives: its session is there" in answer.content
            assert not held.is_lost

    def test_another_fence_than_was_seen(self):
        form = self.form(acquire() - 1)
        answer = client_of("Lock administrators").post(RELEASE, form, follow=True)
        assert b"is held by db1 pid 99 (nightly.pl) under fence" in answer.content
        assert client_of("Lock administrators").post(RELEASE, {**form, "confirmed": ""}).status_code in (200, 302)
        del form["confirmed"]
        assert client_of("Lock administrators").post(RELEASE, form).status_code == 409

    @pytest.mark.parametrize("group", ["Viewers", "Operators", "Account managers"])
    def test_only_lock_administrators_release(self, group):
        answer = client_of(group).post(RELEASE, self.form(acquire()))
        assert answer.status_code == 403
        assert b"Lock administrators" in answer.content
        button = flat(client_of(group).get(PAGE).text).split('data-action="release-lock"')[1].partition(">")[0]
        assert "disabled" in button
        assert 'aria-describedby="right-release"' in button
        assert 'id="right-release"' in client_of(group).get(PAGE).text

    @pytest.mark.parametrize("wrong", [{"name": ""}, {"name": "x" * 256}, {"fence": "1; --"}, {"fence": "9" * 30}])
    def test_a_form_that_no_page_made(self, wrong):
        assert client_of("Lock administrators").post(RELEASE, self.form(1, **wrong)).status_code == 400

    def test_without_a_token_nothing_happens(self):
        client = client_of("Lock administrators")
        strict = Client(enforce_csrf_checks=True)
        strict.cookies = client.cookies
        assert strict.post(RELEASE, self.form(acquire())).status_code == 403
        assert Lock.objects.get().owner == "nightly.pl"

    def test_a_link_does_nothing(self):
        assert client_of("Lock administrators").get(RELEASE).status_code == 405


class TestForget:
    def test_a_retired_command_is_forgotten_after_a_question(self):
        expected()
        client = client_of("Operators")
        assert b"will not be reported any more" in client.post(FORGET, {"name": "nightly-report"}).content
        assert ExpectedCommand.objects.exists()
        answer = client.post(FORGET, {"name": "nightly-report", "confirmed": "1", "reason": "retired"}, follow=True)
        assert b"Monitoring of nightly-report has stopped." in answer.content
        assert not ExpectedCommand.objects.exists()
        assert Intervention.objects.get().reason == "retired"

    def test_viewers_may_not(self):
        expected()
        assert "disabled" in page("Viewers").split('data-action="forget-command"')[1].partition(">")[0]
        assert client_of("Viewers").post(FORGET, {"name": "nightly-report", "confirmed": "1"}).status_code == 403
        assert ExpectedCommand.objects.exists()

    def test_a_form_that_no_page_made(self):
        assert client_of("Operators").post(FORGET, {"name": ""}).status_code == 400
