"""What the server itself keeps a run to: the time of its sessions, and the connections that are left for others."""

import psycopg
import pytest
from django.db import connection

from dashboard.lab import runner
from dashboard.lab.schema import LabRefused
from dashboard.lab.worker import LIMITS, Plan
from tests.commands import database_url

pytestmark = pytest.mark.django_db(transaction=True)


def test_each_session_ends_soon_after_the_run_should_have():
    plan = Plan("unsafe", seconds=30)
    with psycopg.connect(database_url(), autocommit=True) as control:
        options = runner.session_options(plan, control.info.server_version, start_seconds=60)
        with psycopg.connect(database_url(), options=options) as session:
            names = [*runner.ENDS, *([runner.ENDS_17] if control.info.server_version >= 170_000 else [])]
            told = {name: session.execute(f"SHOW {name}").fetchone()[0] for name in names}
            assert set(told.values()) == {"35s"}, told
            assert session.execute(f"SHOW {runner.IDLE}").fetchone() == ("95s",)


def test_a_limit_that_an_older_server_does_not_know_is_not_asked_for():
    plan = Plan("unsafe")
    assert "transaction_timeout" not in runner.session_options(plan, 160_010, start_seconds=60).replace("idle_in_", "")
    assert "-c transaction_timeout=65s" in runner.session_options(plan, 170_000, start_seconds=60)


def test_connections_of_the_server_are_left_for_others(monkeypatch):
    largest = Plan("unsafe", workers=LIMITS["workers"][1], outside_lockers=LIMITS["outside_lockers"][1])
    with psycopg.connect(database_url(), autocommit=True) as control:
        runner.refuse_when_crowded(control, Plan("unsafe", workers=1))
        monkeypatch.setattr(runner, "KEPT_FREE", 10_000)
        with pytest.raises(LabRefused, match=r"needs 72 connections.*ask for fewer workers"):
            runner.refuse_when_crowded(control, largest)


def test_a_limit_of_the_database_counts():
    with psycopg.connect(database_url(), autocommit=True) as control:
        name = connection.ops.quote_name(control.info.dbname)
        control.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 10")
        try:
            with pytest.raises(LabRefused, match="needs 12 connections"):
                runner.refuse_when_crowded(control, Plan("unsafe", workers=4))
        finally:
            control.execute(f"ALTER DATABASE {name} CONNECTION LIMIT -1")
