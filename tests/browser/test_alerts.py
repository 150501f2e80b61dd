"""The page *Alerts* in a real browser: accessible in every look, and a threshold is changed in a dialog."""

import pytest
from playwright.sync_api import expect

from dashboard.models import AlertChannel, Threshold
from tests.browser.looks import assert_looks_right
from tests.people import person

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_the_page_in_every_look_and_a_change_in_a_dialog(visit):
    visitor = visit()
    visitor.log_in(person(is_superuser=True))
    channel = AlertChannel(name="c" * 120, queues=["q" * 120], kinds=["stale"], failure="It answered 500. " * 9)
    channel.set_address("https://hooks.example/T0/pa55")
    channel.save()
    Threshold.objects.create(name="failed_percent", value=50, actor="a" * 60)
    page = visitor.open("/admin/")
    page.locator("#attention .to-alerts").click()
    assert_looks_right(page)
    assert_looks_right(visitor.open(f"/admin/ops/alerts/{channel.pk}/"))
    visitor.open("/admin/ops/alerts/")
    page.locator("#threshold-late_seconds [data-action=change-threshold]").click()
    page.locator("dialog [name=value]").fill("10m")
    page.locator("dialog form.confirm button[type=submit]").click()
    expect(page.locator("#threshold-late_seconds")).to_contain_text("10 min")
