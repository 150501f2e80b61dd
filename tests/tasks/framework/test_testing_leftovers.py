"""`testing.leftovers` in this process; tests/tasks/test_pytest_plugin.py has the rest."""

import pytest
from django.db import connection

from tasks import lock
from tasks.testing import LeftBehind, leftovers


@pytest.mark.django_db
def test_a_database_that_is_not_for_tests_is_left_alone(monkeypatch):
    monkeypatch.setattr(leftovers, "PATIENCE_SECONDS", 0.0)
    watch = leftovers.Watch()
    monkeypatch.setitem(connection.settings_dict, "NAME", "shop")
    elsewhere = leftovers.Watch()
    monkeypatch.undo()
    with lock("held", ttl=60):
        elsewhere.check()
        with pytest.raises(LeftBehind, match=r"- named lock held \(taken in this process\)"):
            watch.check()
    watch.check()
