"""A receiver of alerts, and a channel that leads to it."""

from collections.abc import Iterator

import pytest

from dashboard import secrets
from tests.dashboard.alerts.receiver import PASSWORD, Receiver, receiving
from tests.databases import QueueDatabase

ADD = "INSERT INTO dashboard_alertchannel (name, sealed_address) VALUES ('ops', %s)"


@pytest.fixture
def channel(monkeypatch, database: QueueDatabase) -> Iterator[Receiver]:
    """Lead the only channel of `database` here, for processes that the test starts."""
    monkeypatch.setenv("ROWLOCK_ALERT_PRIVATE", "1")
    with receiving() as receiver:
        database.connection.execute(ADD, [secrets.seal(f"http://127.0.0.1:{receiver.port}/{PASSWORD}")])
        yield receiver
