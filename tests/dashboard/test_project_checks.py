"""System checks of the project around our pages: each says what is missing, and none is needed."""

import pytest
from django.conf import settings as django_settings
from django.core.checks import run_checks
from django.core.management import call_command

from dashboard import conf
from dashboard.project import CSP_MIDDLEWARE, check_project


def ids() -> list[str | None]:
    return [message.id for message in check_project()]


def test_our_own_project_lacks_nothing():
    assert ids() == []


@pytest.mark.parametrize(
    ("id", "without"),
    [
        ("rowlock.W006", {"axes"}),
        ("rowlock.W007", {"django.middleware.security.SecurityMiddleware"}),
        ("rowlock.W007", {"django.middleware.clickjacking.XFrameOptionsMiddleware"}),
        ("rowlock.W008", CSP_MIDDLEWARE),
    ],
)
def test_what_is_missing_is_named(settings, monkeypatch, id, without):
    for name in ("INSTALLED_APPS", "MIDDLEWARE"):  # past the fixture, which would load the apps anew
        monkeypatch.setattr(django_settings, name, [part for part in getattr(settings, name) if part not in without])
    assert ids() == [id]
    settings.SILENCED_SYSTEM_CHECKS = [id]
    assert [message.id for message in run_checks() if not message.is_silenced()] == []


def test_cookies_over_http_matter_where_others_can_reach_the_site(settings):
    settings.ALLOWED_HOSTS = ["localhost"]
    assert ids() == []
    settings.ALLOWED_HOSTS = ["ops.example.com"]
    assert ids() == ["rowlock.W009"]
    settings.SESSION_COOKIE_SECURE = settings.CSRF_COOKIE_SECURE = True
    assert ids() == []


def test_without_debug_static_files_need_a_folder(settings):
    settings.STATIC_ROOT = None
    assert ids() == ["rowlock.W010"]
    settings.DEBUG = True
    assert ids() == []


def test_check_tells_them_and_succeeds(settings, capsys):
    settings.STATIC_ROOT = None
    call_command("check")
    assert "rowlock.W010" in capsys.readouterr().err


def test_a_key_of_rowlock_comes_before_a_setting_of_the_same_meaning(settings):
    settings.METRICS_TOKEN = "of the setting"
    assert conf.get("METRICS_TOKEN") == "of the setting"
    settings.ROWLOCK = {"METRICS_TOKEN": "of the dictionary"}
    assert conf.get("METRICS_TOKEN") == "of the dictionary"
