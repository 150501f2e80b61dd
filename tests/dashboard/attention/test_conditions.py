"""Conditions of the server and of a whole queue, each against the real thing: connections, VACUUM, failures, growth."""

import contextlib
from datetime import timedelta

import psycopg
import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from dashboard import table_sizes
from dashboard.attention import cleanup, thresholds
from dashboard.models import RANGES, TableSize, Threshold
from tasks.models import Intervention, Throughput
from tasks.panels import AttentionLine, Severity, Snapshot
from tasks.support.audit import Who
from tests.dashboard.attention.test_attention import lines
from tests.replica import cluster
from tests.sessions import session
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db
ANNA = Who("anna", "page")

# Each pass of the loop is a subtransaction with an id of its own.
BURN = """
DO $$ BEGIN
    FOR number IN 1..1500 LOOP
        BEGIN INSERT INTO burnt VALUES (number); EXCEPTION WHEN others THEN RAISE; END;
    END LOOP;
END $$
"""


def test_connections_near_the_limit(monkeypatch):
    with contextlib.ExitStack() as opened:
        for _ in range(12):
            opened.enter_context(session("greedy"))
        monkeypatch.setitem(thresholds.USUAL, "connections_percent", 5)
        line = lines()["connections"]
        assert line.text == f"{line.size} of 197 connections are in use."
        assert line.why == "max_connections is 200, of which 3 are reserved. Most are of greedy: 12."
        assert line.severity == Severity.SLOW
        monkeypatch.setitem(thresholds.USUAL, "connections_percent", 99)
        assert lines() == {}


class TestHeldBack:
    def test_slots_standbys_prepared_transactions_and_sessions(self, monkeypatch):
        """Each is named with its age and the step that ends it; after the step its line is gone."""
        settings = {"wal_level": "logical", "max_prepared_transactions": "2", "hot_standby_feedback": "on"}
        with (
            cluster(**settings, wal_receiver_status_interval="1s") as both,
            psycopg.connect(both.primary.url, autocommit=True) as conn,
            psycopg.connect(both.replica.url) as reader,
            psycopg.connect(both.primary.url, application_name="report") as report,
        ):
            monkeypatch.setattr(cleanup, "connection", conn)
            conn.execute("CREATE TABLE burnt (number int)")
            conn.execute("SELECT pg_create_logical_replication_slot('abandoned', 'pgoutput')")
            for reading in (reader, report):
                reading.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                reading.execute("SELECT count(*) FROM burnt")
            conn.execute("BEGIN")
            conn.execute("INSERT INTO burnt VALUES (0)")
            conn.execute("PREPARE TRANSACTION 'orphan''s'")
            wait_until(lambda: conn.execute("SELECT backend_xmin FROM pg_stat_replication").fetchone()[0])
            assert held() == {}
            conn.execute(BURN)
            monkeypatch.setitem(thresholds.USUAL, "held_transactions", 1400)
            pid = report.info.backend_pid
            slot, prepared = "held:slot:abandoned", "held:prepared:orphan's"
            found = held()
            standby = next(key for key in found if key.startswith("held:standby:"))
            assert set(found) == {slot, prepared, standby, f"held:session:{pid}"}
            assert f"pid {pid} (report)" in found[f"held:session:{pid}"].text
            assert all(1400 <= line.size < 2000 for line in found.values())
            for key in (slot, prepared, f"held:session:{pid}"):
                conn.execute(found[key].step.command)
            report.close()
            reader.rollback()
            wait_until(lambda: held() == {})

    def test_a_line_says_how_many_dead_rows_the_tasks_have(self, monkeypatch):
        row = {"kind": "slot", "name": "s", "detail": "", "since": None, "transactions": 9_000_000, "is_here": True}
        monkeypatch.setattr(cleanup, "everything", lambda: [{**row, "dead_rows": 1_034_061}])
        [line] = held().values()
        assert line.why.endswith("The table of tasks has 1,034,061 dead rows.")

    def test_an_old_prepared_transaction_needs_no_number(self, monkeypatch):
        row = {"kind": "prepared", "pid": None, "name": "t", "detail": "db", "transactions": 2, "is_here": True}
        young, old = timezone.now() - timedelta(minutes=14), timezone.now() - timedelta(minutes=16)
        monkeypatch.setattr(cleanup, "everything", lambda: [{**row, "since": young}])
        assert held() == {}
        monkeypatch.setattr(cleanup, "everything", lambda: [{**row, "since": old}])
        assert held()["held:prepared:t"].why.startswith("It has held them for 16 min.")

    def test_a_session_has_one_line(self, monkeypatch):
        """A session with a line as an open transaction gets no second one."""
        with session("psql") as conn:
            conn.execute("SELECT txid_current()")
            row = {"kind": "session", "pid": conn.info.backend_pid, "name": "x", "detail": "psql", "since": None}
            monkeypatch.setattr(cleanup, "everything", lambda: [{**row, "transactions": 2**30, "is_here": True}])
            assert list(lines()) == ["held:session:x"]
            monkeypatch.setitem(thresholds.USUAL, "idle_seconds", 0)
            [key] = lines()
            assert key.startswith("open:")


def held() -> dict[str, AttentionLine]:
    return {line.key: line for line in cleanup.held_back(Snapshot())}


@pytest.mark.parametrize(
    ("minutes", "completed", "failed", "is_shown"),
    [(1, 20, 20, True), (1, 31, 9, False), (1, 30, 10, True), (1, 9, 10, False), (25, 20, 20, False)],
)
def test_a_queue_whose_attempts_fail(minutes, completed, failed, is_shown):
    at = timezone.now() - timedelta(minutes=minutes)
    minute = at.replace(second=0, microsecond=0)
    for shard in (1, 2):
        Throughput.objects.create(
            minute=minute, queue_name="mail", shard=shard, run_buckets=[0] * 16, wait_buckets=[0] * 16,
            completed=completed * (shard - 1), failed=failed * (2 - shard),
        )  # fmt: skip
    found = lines()
    assert list(found) == (["failing:mail"] if is_shown else [])
    if is_shown:
        total = completed + failed
        assert found["failing:mail"].text == f"In 15 min, {failed} of {total} attempts in the queue mail failed."
        assert found["failing:mail"].step.url == "/admin/ops/failures/?queue=mail"


class TestGrowth:
    def test_sizes_are_sampled_once_an_hour_and_old_ones_go(self):
        TableSize.objects.create(name="tasks_task", bytes=1, at=timezone.now() - timedelta(days=9))
        TableSize.objects.create(name="tasks_task", bytes=2, at=timezone.now() - timedelta(minutes=61))
        number = table_sizes.sample(connection)
        assert number > 20
        assert table_sizes.sample(connection) == 0
        assert set(TableSize.objects.values_list("bytes", flat=True)).isdisjoint({1})
        assert TableSize.objects.filter(name="tasks_task").latest("at").bytes > 2

    def test_the_archive_may_grow(self):
        rows.archived()
        table_sizes.sample(connection)
        assert not TableSize.objects.filter(name__startswith="tasks_archive").exists()

    def test_a_locked_table_is_left_out_and_not_waited_for(self):
        with session("migration") as conn:
            conn.execute("LOCK TABLE tasks_attempt IN ACCESS EXCLUSIVE MODE")
            assert table_sizes.sample(connection) > 20
        assert not TableSize.objects.filter(name="tasks_attempt").exists()

    @pytest.mark.parametrize(
        ("was", "now", "is_shown"), [(10, 12.5, True), (10, 11.5, False), (0.1, 0.9, False), (3, 2, False)]
    )
    def test_a_table_that_grows_a_lot_in_a_day(self, was, now, is_shown):
        for hours, size in ((30, 0), (20, was), (10, was), (0, now)):
            at = timezone.now() - timedelta(hours=hours)
            TableSize.objects.create(name="tasks_task", bytes=int(size * 10**9), at=at)
        found = lines()
        assert list(found) == (["growing:tasks_task"] if is_shown else [])
        if is_shown:
            assert "in 20 h, to 11.6" in found["growing:tasks_task"].text.replace("\xa0", " ")


class TestThresholds:
    def test_one_is_set_audited_used_and_given_its_default_again(self):
        assert thresholds.change("late_seconds", 60, ANNA, reason="pages") is True
        assert thresholds.change("late_seconds", 60, ANNA) is False
        assert thresholds.values(Snapshot())["late_seconds"] == 60
        assert thresholds.change("late_seconds", None, ANNA) is True
        assert thresholds.values(Snapshot()) == thresholds.USUAL
        audit = Intervention.objects.order_by("pk").values_list("action", "target", "reason")
        assert list(audit) == [
            ("set value=60", "threshold:late_seconds", "pages"), ("set value=default", "threshold:late_seconds", ""),
        ]  # fmt: skip

    @pytest.mark.parametrize("name", RANGES)
    def test_the_database_refuses_what_the_page_refuses(self, name):
        least, greatest = RANGES[name]
        assert least <= thresholds.USUAL[name] <= greatest
        for value in (least - 1, greatest + 1):
            with pytest.raises(IntegrityError), transaction.atomic():
                Threshold.objects.create(name=name, value=value, actor="psql")

    def test_the_database_refuses_unknown_names(self):
        assert set(thresholds.DEFAULTS) == set(RANGES)
        with pytest.raises(IntegrityError), transaction.atomic():
            Threshold.objects.create(name="of_nothing", value=5, actor="psql")

    def test_while_their_table_is_locked_the_defaults_apply(self):
        with session("migration") as conn:
            conn.execute("LOCK TABLE dashboard_threshold IN ACCESS EXCLUSIVE MODE")
            assert thresholds.values(Snapshot()) == thresholds.USUAL
