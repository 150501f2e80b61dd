"""Who may scrape: the token, or the login of somebody who may see tasks; nobody else, and without a token no token."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.people import client_of, person

pytestmark = pytest.mark.django_db
METRICS = "/metrics"


def answer_to(authorization: str | None, client: Client | None = None):
    headers = {} if authorization is None else {"Authorization": authorization}
    return (client or Client()).get(METRICS, headers=headers)


def test_nobody_is_told_what_to_bring_and_nothing_else():
    answer = answer_to(None)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert "rowlock_" not in answer.text


def test_the_token_opens(settings):
    settings.METRICS_TOKEN = "swordfish"
    answer = answer_to("Bearer swordfish")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    assert "no-store" in answer.headers["Cache-Control"]


@pytest.mark.parametrize(
    "header",
    ["Bearer", "Bearer ", "Bearer swordfis", "Bearer swordfish2", "Basic swordfish", "swordfish", "Bearer schön"],
)
def test_anything_else_does_not(settings, header):
    settings.METRICS_TOKEN = "swordfish"
    assert answer_to(header).status_code == 401


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Bearer None"])
def test_without_a_token_in_the_settings_no_token_opens(settings, header):
    settings.METRICS_TOKEN = ""
    assert answer_to(header).status_code == 401


def test_who_may_see_tasks_may_read_it_and_staff_without_a_group_and_customers_may_not():
    assert answer_to(None, client_of("Viewers")).status_code == 200
    refused = answer_to(None, client_of(username="otto"))
    assert refused.status_code == 403
    assert "tasks.view_task" in refused.text
    assert "rowlock_" not in refused.text
    customer = Client()
    customer.force_login(User.objects.create_user("customer"))
    assert answer_to(None, customer).status_code == 403


def test_whoever_has_left_may_not():
    client = client_of("Operators")
    User.objects.filter(pk=person("Operators").pk).update(is_active=False)
    assert answer_to(None, client).status_code == 401


def test_it_is_read_and_nothing_else(settings):
    settings.METRICS_TOKEN = "swordfish"
    assert Client().post(METRICS, headers={"Authorization": "Bearer swordfish"}).status_code == 405
