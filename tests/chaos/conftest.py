"""Fixtures of the drills: the world that their tasks reach out to, and the report that the long ones are noted in."""

from collections.abc import Iterator

import pytest

from tests.chaos.duties import Duties
from tests.chaos.report import Report
from tests.chaos.world import World
from tests.dashboard.alerts.receiver import receiving
from tests.redis import throw_away_redis
from tests.smtp import mail_server


@pytest.fixture
def world() -> Iterator[World]:
    with mail_server() as mail, throw_away_redis() as redis:
        yield World(mail, redis)


@pytest.fixture
def duties(monkeypatch) -> Iterator[Duties]:
    monkeypatch.setenv("ROWLOCK_ALERT_PRIVATE", "1")  # else no alert goes to this machine
    with receiving() as channel:
        yield Duties(channel)


@pytest.fixture(scope="session")
def report() -> Iterator[Report]:
    """Written to docs/ at the end, with each course that was run whole; nothing is left out that went wrong."""
    report = Report()
    yield report
    if report.whole():
        report.write()
