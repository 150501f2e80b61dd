"""What `@task` declares, and how it comes into the table, follows the code, and stays where an operator changed it."""

import pytest
from django.db import connection

from tasks.compat import InvalidTask
from tasks.framework import declaration
from tasks.framework.decorator import task
from tasks.models import Schedule, Worker
from tasks.operations import schedules
from tasks.schedule.declared import GONE, synchronise
from tasks.support.audit import Who
from tests.tasks import handlers

pytestmark = pytest.mark.django_db
WHO = Who("anna", "page")


def sweep(today: str = "") -> None:
    """Declared anew by each test, as a release does."""


PATH = f"{__name__}.sweep"


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    """Declarations of one test are none of the next."""
    monkeypatch.setattr(declaration, "_registered", dict(declaration._registered))


def release(**options: object) -> None:
    """A new version of the code starts a worker; without options it declares no schedule."""
    declaration._registered.pop(PATH, None)
    task(**options)(sweep)
    synchronise(connection)


def row() -> Schedule:
    return Schedule.objects.get(name=PATH)


def test_a_declared_schedule_comes_into_the_table_once():
    release(every="10m", overlap="queue")
    found = row()
    assert (found.task_path, found.every_seconds, found.cron, found.timezone) == (PATH, 600, None, "UTC")
    assert (found.missed, found.overlap, found.overridden, found.paused) == ("skip", "queue", [], False)
    synchronise(connection)
    assert row().version == found.version


def test_a_changed_declaration_changes_the_row():
    release(schedule="0 1 * * *", timezone="Europe/Berlin")
    Schedule.objects.update(next_at="2030-01-01T00:00:00Z")
    release(schedule="0 2 * * *", timezone="Europe/Berlin", missed="all")
    found = row()
    assert (found.cron, found.missed, found.overridden, found.next_at) == ("0 2 * * *", "all", [], None)
    release(schedule="0 2 * * *", timezone="Europe/Berlin", missed="once")
    assert row().missed == "once"


def test_what_an_operator_overrode_stays_until_it_goes_back():
    release(schedule="0 1 * * *", missed="once")
    schedules.edit(PATH, WHO, {"every": 60})
    release(schedule="0 2 * * *", missed="all")
    found = row()
    assert (found.cron, found.every_seconds, found.missed) == (None, 60, "all")
    assert found.overridden == ["cron", "every_seconds"]
    schedules.revert(PATH, WHO)
    assert (row().cron, row().every_seconds, row().overridden) == ("0 2 * * *", None, [])


def test_a_schedule_whose_code_is_gone_is_paused_and_marked_and_comes_back():
    release(every=60)
    release()
    assert (row().paused, row().paused_by, row().problem) == (True, "rowlock", GONE)
    release(every=120)
    assert (row().paused, row().problem, row().every_seconds) == (False, "", 120)
    schedules.pause(PATH, WHO)
    release()
    assert (row().paused_by, row().problem) == ("anna", GONE)
    release(every=120)
    assert (row().paused, row().paused_by, row().problem) == (True, "anna", "")
    release()
    schedules.delete(PATH, WHO)


def test_a_function_that_another_worker_still_has_is_not_gone():
    release(every=60)
    declaration._registered.pop(PATH)
    Worker.objects.create(id="w-older", hostname="h", pid=1, task_paths=[PATH])
    synchronise(connection)
    assert not row().paused
    Worker.objects.update(stopped_at="2026-01-01T00:00:00Z")
    synchronise(connection)
    assert row().problem == GONE


def test_a_name_that_an_operator_took_stays_his(caplog):
    schedules.add(PATH, handlers.nothing.module_path, WHO, {"every": 60})
    release(every=120)
    assert (row().every_seconds, row().declared) == (60, None)
    assert f"schedule {PATH} was made by an operator" in caplog.text


def needs(argument: str) -> None:
    """Cannot be called without it."""


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"schedule": "* * * *"}, r"schedule cannot be read: '\* \* \* \*' is not a cron expression of five fields"),
        ({"schedule": "0 25 * * *"}, "Bad hour"),
        ({"every": "soon"}, "every cannot be read: 'soon' is not a duration"),
        ({"every": 0}, "not an interval"),
        ({"every": True}, "not an interval"),
        ({"every": 60, "schedule": "* * * * *"}, "either a cron expression or an interval"),
        ({"timezone": "Europe/Berlin"}, "either a cron expression or an interval"),
        ({"every": 60, "timezone": "Mars"}, "not a known time zone"),
        ({"every": 60, "missed": "some"}, "missed must be one of skip, once, all"),
        ({"every": 60, "overlap": "some"}, "overlap must be one of skip, queue, allow"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_where_it_is_written(options, text):
    with pytest.raises(InvalidTask, match=text):
        task(**options)(sweep)


def test_a_declared_schedule_needs_no_arguments():
    with pytest.raises(InvalidTask, match=r"without arguments: missing a required argument: 'argument'"):
        task(every=60)(needs)
    task(every=60)(sweep)
