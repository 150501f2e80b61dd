"""System checks: each mistake in the configuration is named, and a right one is silent."""

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection, connections

from tasks import checks, conf
from tasks.compat import task_backends
from tasks.support.installed import is_ours

SAME = "postgres://user:secret@other-host:5432/{}"


def ids(messages) -> list[str]:
    return [message.id for message in messages]


def checked(**options: object) -> list:
    return checks.check_backend("default", options)


def test_the_project_s_own_configuration_is_silent():
    assert checked() == []
    assert task_backends["default"].check() == []


def test_the_check_of_the_whole_project_is_silent():
    call_command("check", fail_level="WARNING")


def test_manage_py_check_asks_the_backend(settings):
    settings.TASKS = {"default": {"BACKEND": "tasks.backend.PostgresBackend", "OPTIONS": {"retries": 3}}}
    with pytest.raises(SystemCheckError, match=r"rowlock\.E001.*no option 'retries'"):
        call_command("check")


def test_times_without_a_zone_are_refused(settings):
    settings.USE_TZ = False
    assert ids(checked()) == ["rowlock.E011"]


def test_another_database_is_named(monkeypatch):
    monkeypatch.setattr(connections["default"], "vendor", "sqlite")
    assert ids(checked()) == ["rowlock.E002"]


@pytest.mark.parametrize("sign", [{"PORT": "6432"}, {"PORT": 6432}, {"DISABLE_SERVER_SIDE_CURSORS": True}])
def test_a_pooling_proxy_without_a_direct_way_is_a_warning(monkeypatch, settings, sign):
    for key, value in sign.items():
        monkeypatch.setitem(connection.settings_dict, key, value)
    assert ids(checked()) == ["rowlock.W001"]
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": SAME.format(connection.settings_dict["NAME"])}
    assert checked() == []


def test_a_direct_way_that_cannot_be_read(settings):
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": "mysql://host/name"}
    assert ids(checked()) == ["rowlock.E003"]


def test_a_direct_way_to_another_database_shows_no_password(settings):
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": SAME.format("elsewhere")}
    [error] = checked()
    assert error.id == "rowlock.E004"
    assert "elsewhere" in error.msg
    assert "secret" not in error.msg


@pytest.mark.parametrize(
    ("key", "value"),
    [("MAX_ATTEMPTS", 0), ("MAX_ATTEMPTS", 1001), ("MAX_ATTEMPTS", 2.5), ("LEASE_SECONDS", 0), ("SWEEP_SECONDS", "1")],
)
def test_settings_out_of_range(settings, key, value):
    settings.ROWLOCK = {key: value}
    [error] = checked()
    assert error.id == "rowlock.E005"
    assert key in error.msg


def test_an_environment_variable_that_cannot_be_read(monkeypatch):
    monkeypatch.setenv("ROWLOCK_LEASE_SECONDS", "half a minute")
    [error] = checked()
    assert error.id == "rowlock.E005"
    assert "ROWLOCK_LEASE_SECONDS='half a minute'" in error.msg


def test_a_misspelt_setting(settings):
    settings.ROWLOCK = {"LEASE_SECOND": 30}
    [warning] = checked()
    assert warning.id == "rowlock.W002"
    assert "LEASE_SECONDS" in warning.hint


def test_a_package_of_the_same_name_in_place_of_ours(monkeypatch, tmp_path):
    from django.apps import apps

    monkeypatch.setattr(apps.get_app_config("tasks"), "path", str(tmp_path / "tasks"))
    [error] = checked()
    assert error.id == "rowlock.E006"
    assert str(tmp_path) in error.msg


def test_a_project_may_have_orders_of_its_own(monkeypatch, tmp_path):
    from django.apps import apps

    monkeypatch.setattr(apps.get_app_config("orders"), "path", str(tmp_path / "orders"))
    assert checked() == []
    assert not is_ours("orders")


def test_options_come_before_the_dictionary_and_that_before_the_environment(settings, monkeypatch):
    monkeypatch.setenv("ROWLOCK_MAX_ATTEMPTS", "7")
    assert conf.get("MAX_ATTEMPTS") == 7
    settings.ROWLOCK = {"MAX_ATTEMPTS": 8}
    assert conf.get("MAX_ATTEMPTS") == 8
    settings.TASKS = {"default": {"BACKEND": conf.BACKEND, "OPTIONS": {"MAX_ATTEMPTS": 9, "DATABASE": "default"}}}
    assert conf.get("MAX_ATTEMPTS") == 9
    assert task_backends["default"].check() == []


def test_two_aliases_may_not_disagree(settings):
    first, second = ({"BACKEND": conf.BACKEND, "OPTIONS": {"LEASE_SECONDS": seconds}} for seconds in (9, 8))
    settings.TASKS = {"default": first, "b": second}
    assert ids(task_backends["default"].check()) == []
    assert ids(task_backends["b"].check()) == ["rowlock.E010"]


def test_an_option_out_of_range(settings):
    settings.TASKS = {"default": {"BACKEND": conf.BACKEND, "OPTIONS": {"MAX_ATTEMPTS": 0}}}
    [error] = task_backends["default"].check()
    assert error.id == "rowlock.E005"
    assert "TASKS" in error.hint


def test_another_alias_as_the_home_of_the_queue_is_refused(settings):
    settings.TASKS = {"default": {"BACKEND": conf.BACKEND, "OPTIONS": {"DATABASE": "reports"}}}
    [error] = task_backends["default"].check()
    assert error.id == "rowlock.E009"
    assert "same transaction" in error.msg


@pytest.mark.django_db
def test_migrations_of_another_project_in_our_schema():
    assert checks.check_migrations(databases=["default"]) == []
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO django_migrations (app, name, applied) VALUES ('orders', '0099_theirs', now())")
    [warning] = checks.check_migrations(databases=["default"])
    assert warning.id == "rowlock.W003"
    assert "orders.0099_theirs" in warning.msg


def test_no_query_unless_the_database_is_to_be_checked():
    assert checks.check_migrations(databases=None) == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    "change",
    [
        "SET (autovacuum_enabled = 'OFF')",
        "RESET (autovacuum_vacuum_scale_factor)",
        "RESET (vacuum_index_cleanup)",
        "RESET (fillfactor)",
    ],
)
def test_tables_that_autovacuum_would_reach_too_late(change):
    assert [message.id for message in checks.check_vacuum(databases=["default"]) if "tasks_task" in message.msg] == []
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE tasks_task {change}")
    [warning] = checks.check_vacuum(databases=["default"])
    assert (warning.id, warning.msg.endswith(": tasks_task.")) == ("rowlock.W011", True)
    assert checks.check_vacuum(databases=None) == []


@pytest.mark.django_db
def test_a_server_that_counts_no_dead_rows():
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL track_counts = off")
    [warning] = checks.check_vacuum(databases=["default"])
    assert (warning.id, warning.msg) == ("rowlock.W011", "Autovacuum is off on this server.")
