"""Guessing passwords: slowed down by name and address, so that nobody can lock out anybody else."""

import logging
import os
import subprocess
import sys
from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.conf import settings as project
from django.contrib.auth.hashers import MD5PasswordHasher
from django.core.management import call_command
from django.test import Client, RequestFactory

from dashboard.login import client_address
from tests.people import PASSWORD, person

pytestmark = pytest.mark.django_db
LOGIN = "/admin/login/"


def log_in(password: str, *, name: str = "anna", address: str = "192.0.2.1", agent: str = "a browser"):
    form = {"username": name, "password": password, "next": "/admin/"}
    return Client(REMOTE_ADDR=address, headers={"user-agent": agent}).post(LOGIN, form)


def guess(times: int = project.AXES_FAILURE_LIMIT, **who: str):
    return [log_in(f"wrong {number}", agent=f"agent {number}", **who) for number in range(times)][-1]


@pytest.fixture(autouse=True)
def anna():
    return person(username="anna")


def test_the_last_wrong_password_says_how_long_to_wait_and_what_ends_it():
    page = guess()
    assert page.status_code == 429
    assert page.headers["Retry-After"] == "900"
    assert "For 15 minutes it cannot log in" in page.text
    assert "axes_reset_username" in page.text
    assert "anna" not in page.text


def test_one_guess_less_locks_nothing():
    assert guess(project.AXES_FAILURE_LIMIT - 1).status_code == 200
    assert log_in(PASSWORD).status_code == 302


def test_then_even_the_right_password_is_not_tried():
    guess()
    assert log_in(PASSWORD).status_code == 429


def test_whoever_guesses_locks_out_nobody_but_himself():
    person(username="boris")
    guess()
    assert log_in(PASSWORD, address="192.0.2.2").status_code == 302
    assert log_in(PASSWORD, name="boris").status_code == 302


@pytest.fixture
def few(monkeypatch) -> int:
    """How many guesses one address has, over all names: not fifty, for the sake of time."""
    monkeypatch.setattr("dashboard.guesses.FROM_ONE_ADDRESS", 8)
    return 8


def spray(times: int):
    """One wrong password for each of many names."""
    return [log_in("Autumn2026!", name=f"person {number}") for number in range(times)][-1]


def test_one_password_for_many_names_locks_their_address_out(few):
    assert spray(few - 1).status_code == 200
    page = log_in("Autumn2026!", name="boris")
    assert page.status_code == 429
    assert "This address gave 8 wrong passwords." in page.text
    assert "axes_reset_ip 192.0.2.1" in page.text
    assert log_in(PASSWORD).status_code == 429
    assert log_in(PASSWORD, address="192.0.2.2").status_code == 302
    call_command("axes_reset_ip", "192.0.2.1")
    assert log_in(PASSWORD).status_code == 302


def test_a_password_that_is_known_does_not_clear_the_guesses_for_other_names(few):
    spray(few - 1)
    assert log_in(PASSWORD).status_code == 302
    assert log_in("Autumn2026!", name="boris").status_code == 429


class CountingHasher(MD5PasswordHasher):
    hashed = 0

    def encode(self, password: str, salt: str, *args: object) -> str:
        type(self).hashed += 1
        return super().encode(password, salt, *args)


@pytest.fixture
def hasher(settings, anna) -> type[CountingHasher]:
    settings.PASSWORD_HASHERS = [f"{__name__}.CountingHasher"]
    CountingHasher.hashed = 0
    return CountingHasher


@pytest.mark.parametrize("length", [151, 300, 100_000])
def test_a_name_that_no_account_can_have_is_counted_and_nothing_is_hashed(few, hasher, length):
    names = [f"{number}".ljust(length, "x") for number in range(few)]
    assert [log_in("Autumn2026!", name=name).status_code for name in names] == [200] * (few - 1) + [429]
    assert hasher.hashed == 0
    assert log_in(PASSWORD).status_code == 429
    assert log_in(PASSWORD, address="192.0.2.2").status_code == 302


def test_the_longest_name_that_an_account_can_have_is_tried(hasher):
    person(username="x" * 150)
    assert log_in("wrong", name="x" * 150).status_code == 200
    assert hasher.hashed > 0
    assert log_in(PASSWORD, name="x" * 150).status_code == 302


def test_guesses_during_the_wait_do_not_make_it_longer():
    guess()
    [before] = AccessAttempt.objects.order_by("-attempt_time").values_list("attempt_time", flat=True)[:1]
    guess(3)
    assert AccessAttempt.objects.order_by("-attempt_time").values_list("attempt_time", flat=True)[0] == before


def test_the_wait_ends_and_leaves_no_rows():
    guess()
    for attempt in AccessAttempt.objects.all():
        attempt.attempt_time -= timedelta(minutes=16)
        attempt.save()
    assert log_in(PASSWORD).status_code == 302
    assert not AccessAttempt.objects.exists()


def test_the_command_that_the_page_names_ends_the_wait(capsys):
    guess()
    call_command("axes_reset_username", "anna")
    assert log_in(PASSWORD).status_code == 302


def test_a_right_password_forgets_the_wrong_ones():
    guess(project.AXES_FAILURE_LIMIT - 1)
    log_in(PASSWORD)
    assert guess(project.AXES_FAILURE_LIMIT - 1).status_code == 200


def test_no_password_is_kept_or_logged(caplog):
    guess()
    kept = "".join(AccessAttempt.objects.values_list("post_data", flat=True))
    assert "wrong 0" not in kept + caplog.text
    assert "anna" not in caplog.text


@pytest.mark.parametrize(
    ("proxies", "remote", "forwarded", "expected"),
    [
        (0, "192.0.2.1", "203.0.113.9", "192.0.2.1"),
        (1, "10.0.0.1", "203.0.113.9", "203.0.113.9"),
        (1, "10.0.0.1", "made up, 203.0.113.9", "203.0.113.9"),
        (2, "10.0.0.1", "198.51.100.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        (2, "10.0.0.1", "203.0.113.9", "10.0.0.1"),
        (1, "10.0.0.1", "nonsense", "10.0.0.1"),
        (1, "10.0.0.1", "", "10.0.0.1"),
        (0, "2001:db8::1:2:3:4", "", "2001:db8::"),
        (0, "::ffff:192.0.2.1", "", "192.0.2.1"),
        (0, "", "", "0.0.0.0"),
    ],
)
def test_the_address_is_what_our_own_proxies_saw(settings, proxies, remote, forwarded, expected):
    settings.PROXY_COUNT = proxies
    request = RequestFactory().get("/", REMOTE_ADDR=remote, headers={"x-forwarded-for": forwarded})
    assert client_address(request) == expected


def test_cookies_are_for_https_alone_where_the_site_is():
    """As `make lint` has them with HTTPS=1; here without."""
    assert project.SESSION_COOKIE_HTTPONLY
    assert project.SESSION_COOKIE_SAMESITE == project.CSRF_COOKIE_SAMESITE == "Lax"
    assert project.SESSION_COOKIE_SECURE == project.CSRF_COOKIE_SECURE == project.SECURE_SSL_REDIRECT == project.HTTPS
    assert timedelta(hours=1) <= timedelta(seconds=project.SESSION_COOKIE_AGE) <= timedelta(days=1)


def test_logins_logouts_and_refusals_leave_a_line_with_the_address(caplog):
    caplog.set_level(logging.INFO, "dashboard.login")
    log_in("wrong", name="someone's password")
    client = Client(REMOTE_ADDR="192.0.2.7")
    client.post(LOGIN, {"username": "anna", "password": PASSWORD})
    client.post("/admin/logout/")
    assert [message for name, _level, message in caplog.record_tuples if name == "dashboard.login"] == [
        "login refused, from 192.0.2.1",
        "logged in: 'anna' from 192.0.2.7",
        "logged out: 'anna' from 192.0.2.7",
    ]


def test_a_new_login_gets_a_new_session_and_a_new_password_ends_the_others():
    here, there = Client(), Client()
    for client in (here, there):
        client.get(LOGIN)
        client.post(LOGIN, {"username": "anna", "password": PASSWORD})
    keys = {client.cookies[project.SESSION_COOKIE_NAME].value for client in (here, there)}
    assert len(keys) == 2
    new = {"old_password": PASSWORD, "new_password1": "another 4711 horse", "new_password2": "another 4711 horse"}
    assert here.post("/admin/password_change/", new).status_code == 302
    assert [client.get("/admin/").status_code for client in (here, there)] == [200, 302]


def test_an_account_that_is_switched_off_is_out_at_once(anna):
    client = Client()
    client.force_login(anna)
    assert client.get("/admin/").status_code == 200
    anna.is_active = False
    anna.save()
    assert client.get("/admin/").status_code == 302


def test_behind_tls_cookies_are_of_this_host_alone():
    """In a process of its own: the settings are read once."""
    names = "SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME, s.LANGUAGE_COOKIE_NAME, s.SESSION_COOKIE_SECURE"
    code = f"import dashboard.settings as s; print(s.{names}, s.CSRF_COOKIE_SECURE, s.LANGUAGE_COOKIE_SECURE)"
    variables = {**os.environ, "HTTPS": "1", "SECRET_KEY": "x"}
    told = subprocess.run([sys.executable, "-c", code], cwd=project.BASE_DIR, env=variables, capture_output=True)
    assert told.stdout.split() == [b"__Host-session", b"__Host-csrf", b"__Host-language", b"True", b"True", b"True"]
