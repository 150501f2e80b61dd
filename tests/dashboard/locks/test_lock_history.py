"""The lock history: the past that is drawn from what the sampler kept, and how it stays small."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.locks import history
from dashboard.models import Deadlocks, LockWait
from tests.commands import run
from tests.dashboard.scenes import Scene
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)
HISTORY = "/admin/ops/locks/history/"
NIGHT = datetime(2026, 11, 21, 3, 10, tzinfo=UTC)
MANY_WAITS = """
INSERT INTO dashboard_lockwait (pair, blocked_pid, blocker_pid, locktype, waiting_since, last_seen)
SELECT number, 1, 2, 'tuple', %s::timestamptz + number * interval '1 minute',
    %s::timestamptz + (number + 1) * interval '1 minute' FROM generate_series(0, 4999) AS number
"""


def wait(blocked: int, blocker: int, begin: datetime, end: datetime, **columns: object) -> LockWait:
    names = {
        "pair": f"{blocked} {blocker} {begin}",
        "locktype": "transactionid",
        "mode": "ShareLock",
        "target": "order 1042",
    }
    return LockWait.objects.create(
        blocked_pid=blocked, blocker_pid=blocker, waiting_since=begin, last_seen=end, **{**names, **columns}
    )


def night(minutes: float) -> datetime:
    return NIGHT + timedelta(minutes=minutes)


class TestLookingBack:
    def test_the_tree_of_that_moment_is_drawn_from_the_waits_that_went_on(self) -> None:
        wait(902, 812, night(-4), night(3), blocker_who="psql", blocker_since=night(-20))
        wait(915, 902, night(-1), night(1), blocked_who="rowlock:cmd:transfer", locktype="tuple")
        wait(930, 812, night(-9), night(-5))
        wait(940, 812, night(5), night(6))
        tree = history.look_back(NIGHT, timedelta(minutes=15)).tree
        assert [(line.node.session.pid, line.level) for line in tree] == [(812, 1), (902, 2), (915, 3)]
        assert tree[0].node.session.transaction_seconds == 20 * 60
        assert tree[1].node.waits_for is not None
        assert tree[1].node.waits_for.wait_seconds == 4 * 60

    def test_the_list_holds_what_overlaps_the_window(self) -> None:
        for pid, (begin, end) in enumerate(((-30, -16), (-30, -14), (14, 20), (16, 20)), start=1):
            wait(pid, 812, night(begin), night(end))
        waits = history.look_back(NIGHT, timedelta(minutes=15)).waits
        assert [row.blocked_pid for row in waits] == [3, 2]

    def test_it_is_paged_by_key(self) -> None:
        made = [wait(number, 812, night(0), night(1)).pk for number in range(1, history.PAGE + 4)]
        first = history.look_back(NIGHT, timedelta(minutes=5))
        assert [row.pk for row in first.waits] == made[:2:-1]
        second = history.look_back(NIGHT, timedelta(minutes=5), before=first.before)
        assert [row.pk for row in second.waits] == made[2::-1]
        assert second.before is None

    def test_a_table_that_somebody_holds_does_not_keep_the_page_waiting(self) -> None:
        with Scene() as scene:
            scene.holding("migration", "LOCK TABLE dashboard_lockwait")
            answer = client_of("Viewers").get(HISTORY)  # while the table is held
        assert answer.status_code == 503
        assert "is locked, perhaps by a migration" in answer.text

    def test_deadlocks_of_the_window_are_summed(self) -> None:
        for minutes, number in ((-20, 1), (-3, 2), (4, 3)):
            Deadlocks.objects.create(at=night(minutes), number=number, total=number)
        assert history.look_back(NIGHT, timedelta(minutes=5)).deadlocks == 5

    def test_an_old_moment_is_found_through_the_index(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(MANY_WAITS, [NIGHT, NIGHT])
            cursor.execute("ANALYZE dashboard_lockwait")
            cursor.execute(
                f"EXPLAIN {history.WAITS}", {"since": night(10), "until": night(12), "before": None, "limit": 51}
            )
            plan = "\n".join(line for (line,) in cursor.fetchall())
        assert "dashboard_lockwait_when" in plan
        assert "Seq Scan" not in plan


class TestThePage:
    def test_it_shows_who_blocked_whom_at_ten_past_three(self) -> None:
        task = rows.processing("7f")
        wait(
            902, 812, night(-4), night(3), blocked_who="rowlock:worker:7f", blocked_task=task.pk,
            blocker_who="psql <b>", blocker_query="SELECT '<script>'",
        )  # fmt: skip
        html = client_of("Viewers").get(HISTORY, {"at": "2026-11-21T03:10", "around": "5"}).content.decode()
        assert 'id="node-812"' in html
        assert f"/admin/tasks/task/{task.pk}/" in html
        assert "/admin/ops/workers/#worker-7f" in html
        assert "order 1042" in html
        assert "<script>'" not in html
        assert "psql <b>" not in html

    def test_the_time_line_counts_the_sessions_that_waited_in_each_part(self) -> None:
        wait(902, 812, night(0), night(30))
        wait(903, 812, night(12), night(13))
        wait(903, 812, night(13), night(14))
        blocked = history.blocked_over(night(-60), night(180))  # 240 parts of a minute
        assert blocked.counts[60:91] == [*[1] * 12, 2, 2, 2, *[1] * 16]
        assert sum(blocked.counts) == 34
        assert (blocked.most, blocked.most_at) == (2, night(14))
        assert history.blocked_over(night(-60), night(-30)) == history.Blocked([0] * history.SLOTS)

    def test_a_wait_longer_than_the_time_line_fills_it(self) -> None:
        wait(902, 812, night(-9999), night(9999))
        assert history.blocked_over(night(0), night(60)).counts == [1] * history.SLOTS

    def test_the_place_on_the_time_line_is_the_moment(self) -> None:
        """As the form sends it, with and without the script."""
        wait(902, 812, night(-4), night(3))
        query = {"since": night(-30).isoformat(), "place": "1800", "span": "1h", "around": "5"}
        client = client_of("Viewers")
        page = client.get(HISTORY, query)
        assert (page.context["moment"].at, page.context["moment"].since) == (NIGHT, night(-30))
        assert re.search(r'name="place" min="0" max="3600" step="10"\s+value="1800"', page.text)
        part = client.get(HISTORY, query, headers={"HX-Request": "true"}).text
        assert "<html" not in part
        assert 'id="node-812"' in part

    @pytest.mark.parametrize(
        "query", [{"place": "1"}, {"since": "x", "place": "1"}, {"place": "9" * 19}, {"span": "x"}]
    )
    def test_a_place_that_is_none_shows_now(self, query) -> None:
        moment = client_of("Viewers").get(HISTORY, query).context["moment"]
        assert timezone.now() - moment.at < timedelta(minutes=1)
        assert moment.since <= moment.at <= moment.until

    def test_it_opens_at_the_latest_wait_and_a_key_meets_whole_minutes(self) -> None:
        latest = wait(902, 812, night(-4), NIGHT + timedelta(seconds=7))
        moment = client_of("Viewers").get(HISTORY).context["moment"]
        assert moment.at == latest.last_seen
        assert moment.since <= moment.at <= moment.until
        assert (moment.since.second, moment.since.microsecond, moment.step) in {(0, 0, 60), (0, 0, 600)}

    @pytest.mark.parametrize("wrong", ["yesterday", "2026-13-45T00:00", "0001-01-01T00:00", "9999-12-31T23:59"])
    def test_a_time_that_is_none_is_said_and_replaced_by_now(self, wrong: str) -> None:
        wait(902, 812, timezone.now() - timedelta(minutes=1), timezone.now())
        html = client_of("Viewers").get(HISTORY, {"at": wrong, "around": "x", "before": "y"}).content.decode()
        assert "this is now" in html
        assert "order 1042" in html

    def test_it_needs_the_right_to_see(self) -> None:
        assert client_of().get(HISTORY).status_code == 403
        assert Client().get(HISTORY).status_code == 302

    def test_more_waits_take_no_more_statements(self) -> None:
        client = client_of("Viewers")
        counts = []
        for pids in (range(1, 3), range(3, 40)):
            for pid in pids:
                wait(pid, 812, night(0), night(1))
            with CaptureQueriesContext(connection) as statements:
                client.get(HISTORY, {"at": NIGHT.isoformat()})
            counts.append(len(statements))
        assert counts[0] == counts[1]


class TestTheCommand:
    def test_it_prints_the_tree_of_that_moment_and_the_waits_around_it(self) -> None:
        wait(902, 812, night(-4), night(3), blocked_who="shop", blocker_who="psql", blocker_state="idle in transaction")
        wait(915, 902, night(-1), night(1), blocked_who="rowlock:cmd:transfer", locktype="tuple")
        Deadlocks.objects.create(at=night(2), number=2, total=2)
        text = run("show_lock_history", "--at", "2026-11-21T03:10:00Z").stdout
        assert text.splitlines()[:3] == [
            "812  psql · idle in transaction · 2 blocked",
            "└ 902  shop · waits 4 min for order 1042 (transactionid, ShareLock) · 1 blocked",
            "  └ 915  command transfer · waits 60 s for order 1042 (tuple, ShareLock)",
        ]
        assert "2026-11-21 03:06:00" in text
        assert text.rstrip().endswith("2 deadlocks around it.")

    def test_its_json_goes_on_by_key(self) -> None:
        made = [wait(pid, 812, night(0), night(1)).pk for pid in range(1, history.PAGE + 3)]
        argv = ("show_lock_history", "--at", NIGHT.isoformat(), "--around", "5m", "--json")
        first = run(*argv).data
        assert [row["id"] for row in first["waits"]] == made[:1:-1]
        second = run(*argv, "--before-id", first["before_id"]).data
        assert ([row["id"] for row in second["waits"]], second["before_id"]) == (made[1::-1], None)
        assert first["blockers"] == [{"pid": 812, "blocked": list(range(1, history.PAGE + 3))}]

    def test_the_page_shows_the_command(self) -> None:
        html = client_of("Viewers").get(HISTORY, {"at": "2026-11-21T03:10", "around": "5"}).content.decode()
        assert "show_lock_history --at 2026-11-21T03:10:00Z --around 5m" in html

    def test_a_quiet_night_is_said(self) -> None:
        text = run("show_lock_history", "--at", "2026-11-21T03:10:00Z").stdout
        assert "Nobody waited for a lock at 2026-11-21 03:10:00 UTC." in text
        assert run("show_lock_history").status == 2


class TestPruning:
    def test_old_waits_and_counts_go_but_for_the_latest_total(self) -> None:
        old, young = timezone.now() - timedelta(days=8), timezone.now() - timedelta(days=1)
        wait(1, 2, old, old)
        wait(3, 2, old, young)
        for _ in range(2):
            Deadlocks.objects.create(at=old, number=1, total=1)
        tables = run("prune_history", "--older-than", "7d", "--json").data["tables"]
        assert (tables["lock_waits"], tables["deadlocks"]) == (1, 1)
        assert LockWait.objects.get().blocked_pid == 3
        assert Deadlocks.objects.count() == 1

    def test_a_dry_run_keeps_all(self) -> None:
        old = timezone.now() - timedelta(days=8)
        wait(1, 2, old, old)
        assert run("prune_history", "--older-than", "7d", "--json", "--dry-run").data["tables"]["lock_waits"] == 1
        assert LockWait.objects.exists()
