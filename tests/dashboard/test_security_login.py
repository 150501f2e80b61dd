"""Guessing passwords: slowed down by name and address, so that nobody can lock out anybody else."""

from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.conf import settings as project
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
    assert "next 15 minutes" in page.text
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
