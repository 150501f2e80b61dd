"""Tokens in the admin: superusers alone make and revoke them, and the secret is shown once."""

import re

import pytest
from django.contrib.auth.models import Group
from django.urls import reverse
from django.utils import timezone

from dashboard.models import ApiToken
from tasks.models import Intervention
from tests.dashboard.api.callers import Caller
from tests.people import client_of, person
from tests.tasks import handlers

pytestmark = pytest.mark.django_db
LIST, ADD = reverse("admin:dashboard_apitoken_changelist"), reverse("admin:dashboard_apitoken_add")


@pytest.fixture
def root():
    return client_of(username="root", is_superuser=True)


def test_a_token_is_made_and_its_secret_shown_once(root):
    viewers, user = Group.objects.get(name="Viewers"), person("Operators")
    answer = root.post(ADD, {"name": "deploy", "user": user.pk, "group": viewers.pk, "days": "30"})
    [secret] = re.findall(r"rowlock_[\w-]{40,}", answer.text)
    token = ApiToken.objects.get()
    assert (token.name, token.user, token.group) == ("deploy", user, viewers)
    assert 29 < (token.expires_at - timezone.now()).days + 1 <= 30
    assert "no-store" in answer["Cache-Control"]
    caller = Caller("Operators")
    caller.secret = secret
    caller.get("/tasks")
    assert caller.status == 200
    assert secret not in root.get(LIST).text
    assert token.shown in root.get(LIST).text
    entry = Intervention.objects.get(target="token:deploy")
    assert (entry.actor, entry.action) == ("root", "create token user=anna")


def test_a_wrong_form_is_shown_again(root):
    outsider = person(username="outsider")
    outsider.is_staff = False
    outsider.save()
    Caller("Operators")
    taken = ApiToken.objects.get().name
    for form in ({"name": taken}, {"name": "a\nb"}, {"name": "x", "user": outsider.pk}, {"name": "x", "days": "0"}):
        answer = root.post(ADD, {"user": person().pk, **form})
        assert (answer.status_code, "errorlist" in answer.text) == (200, True), form
    assert ApiToken.objects.count() == 1


def test_tokens_are_revoked(root):
    caller = Caller("Operators")
    root.post(LIST, {"action": "revoke", "_selected_action": [caller.token.pk]})
    caller.get("/tasks")
    assert caller.status == 401
    assert Intervention.objects.get(action="revoke token").actor == "root"


def test_nobody_else_sees_or_makes_tokens():
    """A right to make tokens would be everybody's rights."""
    operator = client_of("Operators", "Lock administrators", "Account managers")
    assert operator.get(LIST).status_code == 403
    assert operator.get(ADD).status_code == 403
    assert operator.post(ADD, {"name": "x", "user": person().pk}).status_code == 403
    assert not ApiToken.objects.exists()


def test_an_account_that_goes_takes_its_tokens_with_it(root):
    caller = Caller("Operators")
    caller.post("/tasks", {"task_path": handlers.add.module_path, "args": [1, 2]})
    page = reverse("admin:dashboard_apitoken_change", args=[caller.token.pk])
    assert caller.token.shown in root.get(page).text
    assert caller.token.secret_hash not in root.get(page).text
    root.post(reverse("admin:auth_user_delete", args=[caller.token.user.pk]), {"post": "yes"})
    assert not ApiToken.objects.exists()
    caller.get("/tasks")
    assert caller.status == 401
