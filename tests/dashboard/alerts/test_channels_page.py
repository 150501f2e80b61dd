"""The channels of the page *Alerts*: added, edited and deleted; an address is written and shown nowhere."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from dashboard.alerts import editing
from dashboard.apps import GROUPS
from dashboard.models import AlertChannel
from dashboard.views.alert_channels import since
from tasks.models import Intervention
from tests.dashboard.alerts.receiver import receiving
from tests.html import answers, flat
from tests.people import client_of, person

pytestmark = pytest.mark.django_db
PAGE, ADD = "/admin/ops/alerts/", "/admin/ops/alerts/add/"
SECRET = "pa55w0rd"
FIELDS = {
    "name": "ops", "address": f"https://hooks.example/{SECRET}", "least_severity": "2", "queues": "mail, pay",
    "kinds": "stale", "enabled": "on", "reason": "the new room",
}  # fmt: skip


@pytest.fixture
def root():
    return client_of(is_superuser=True)


@pytest.fixture
def channel(root):
    assert "The channel was saved." in answers(root.post(ADD, FIELDS, follow=True).text)
    return AlertChannel.objects.get()


def audit() -> list[tuple[str, str, str]]:
    return list(Intervention.objects.order_by("pk").values_list("action", "target", "reason"))


def row(client, channel: AlertChannel) -> str:
    [found] = re.findall(rf'<tr id="channel-{channel.pk}">(.*?)</tr>', flat(client.get(PAGE).text))
    return " ".join(re.sub("<[^>]*>", " ", found).split())


def test_a_channel_is_added_and_listed_by_its_scheme(root, channel):
    assert channel.address == FIELDS["address"]
    assert (channel.least_severity, channel.queues, channel.kinds, channel.enabled) == (
        2,
        ["mail", "pay"],
        ["stale"],
        True,
    )
    assert row(root, channel).startswith("ops https critical, and what waits for a person mail, pay stale")
    assert audit() == [
        ("add channel least_severity=2 queues=mail,pay kinds=stale enabled=true", "channel:ops", "the new room")
    ]


def test_an_empty_address_keeps_the_stored_one(root, channel):
    url = f"{PAGE}{channel.pk}/"
    fields = {**FIELDS, "name": "night", "address": "", "queues": "", "reason": ""}
    del fields["enabled"]
    root.post(url, fields)
    kept, channel = channel, AlertChannel.objects.get()
    assert (channel.name, channel.queues, channel.enabled) == ("night", [], False)
    assert channel.sealed_address == kept.sealed_address
    assert audit()[-1] == ("edit channel name=night queues=all enabled=false", "channel:ops", "")
    assert "was like that already" in root.post(url, fields, follow=True).text
    root.post(url, {**fields, "address": "slack://other"})
    assert AlertChannel.objects.get().address == "slack://other"
    assert audit()[-1] == ("edit channel address", "channel:night", "")
    assert "disabled slack" in row(root, channel)


def test_how_sending_went_is_kept_and_shown(root, channel):
    editing.note("ops", "It answered 500.")
    assert "It answered 500." in row(root, channel)
    assert AlertChannel.objects.get().sent_at is None
    editing.note("ops")
    channel = AlertChannel.objects.get()
    assert channel.sent_at is not None
    assert (channel.failed_at is not None, channel.failure) == (True, "It answered 500.")


def test_a_test_reaches_a_real_receiver_and_is_audited(root, channel, settings):
    """Also while the channel is disabled; a refusal is told without the address."""
    settings.ROWLOCK = {**settings.ROWLOCK, "ALERT_PRIVATE": True}
    url = f"{PAGE}{channel.pk}/test/"
    with receiving() as receiver:
        channel.set_address(f"http://127.0.0.1:{receiver.port}/{SECRET}")
        channel.enabled = False
        channel.save()
        assert "The channel ops took the test message." in answers(root.post(url, follow=True).text)
        receiver.status = 500
        told = answers(root.post(url, follow=True).text)
    assert [body["kind"] for body in receiver.bodies] == ["test", "test"]
    assert "did not take the message: It answered 500." in told
    assert SECRET not in told
    kept = AlertChannel.objects.get()
    assert kept.sent_at < kept.failed_at
    assert audit()[1:] == [("test channel", "channel:ops", "")] * 2


def test_channels_of_the_environment_are_listed_and_not_edited(root, settings):
    settings.ROWLOCK = {**settings.ROWLOCK, "ALERT_URLS": (f"slack://{SECRET}",)}
    page = root.get(PAGE).text
    assert "env-1-slack" in page
    assert SECRET not in page
    assert "delete-channel" not in page


def test_one_is_deleted_after_a_question(root, channel):
    url = f"{PAGE}{channel.pk}/delete/"
    assert "its address is lost" in root.post(url).text
    assert AlertChannel.objects.exists()
    assert "The channel was deleted." in root.post(url, {"confirmed": "1", "reason": "gone"}, follow=True).text
    assert not AlertChannel.objects.exists()
    assert audit()[-1] == ("delete channel", "channel:ops", "gone")
    assert root.post(url).status_code == 404


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("name", "", "This field is required."),
        ("address", "", "This field is required."),
        ("address", "hooks.example", "Write an address with its scheme"),
        ("least_severity", "9", "Select a valid choice"),
        ("queues", "a\x07b", "control"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_stored(root, field, value, told):
    answer = root.post(ADD, {**FIELDS, field: value})
    assert answer.status_code == 400
    assert told in flat(answer.text)
    assert not AlertChannel.objects.exists()


def test_a_name_is_taken_once(root, channel):
    answer = root.post(ADD, FIELDS)
    assert answer.status_code == 400
    assert "Another channel has this name." in answer.text


def test_an_address_that_no_key_opens_is_listed_and_replaced(root, channel, settings):
    AlertChannel.objects.update(sealed_address="gAAAA")
    assert "ops ?" in row(root, channel)
    root.post(f"{PAGE}{channel.pk}/", FIELDS)
    assert AlertChannel.objects.get().address == FIELDS["address"]


@pytest.mark.parametrize("path", [ADD, "{pk}/", "{pk}/delete/", "{pk}/test/"])
def test_operators_are_refused(channel, path):
    operator = client_of("Operators", "Lock administrators", username="olga")
    url = path if path == ADD else PAGE + path.format(pk=channel.pk)
    assert operator.post(url, {**FIELDS, "confirmed": "1", "name": "x"}).status_code == 403
    assert AlertChannel.objects.get().name == "ops"


def test_no_group_may_view_channels():
    member = person(*GROUPS, username="gert")
    assert member.has_perm("dashboard.view_incident")
    assert not member.has_perm("dashboard.view_alertchannel")


def test_a_moment_after_the_look_is_just_now():
    now = timezone.now()
    assert "just now" in since(now + timedelta(seconds=1), now)
    assert since(None, now) == ""
