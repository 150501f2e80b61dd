"""The second language on every page: nothing overflows, nothing breaks, and a person can choose it."""

import pytest

from tests.browser.looks import ALL_BUT_COLOURS, ONLY_COLOURS, assert_accessible, assert_fits, look
from tests.browser.test_looks import addresses, failed  # noqa: F401  fixtures

pytestmark = pytest.mark.browser


def test_every_page_fits_and_is_accessible(visit, addresses):  # noqa: F811
    visitor = visit("Operators", "Account managers")
    visitor.context.add_cookies([{"name": "django_language", "value": "ru", "url": visitor.base}])
    for address in addresses.values():
        page = visitor.open(address)
        assert page.locator("html").get_attribute("lang") == "ru"
        assert_fits(page)
        assert_accessible(page, **ALL_BUT_COLOURS)  # which are the same in every language
        look(page, "light", "narrow")
        assert_fits(page)
        look(page, "light", "wide")


def test_a_person_chooses_a_language_at_the_foot_of_a_page(visit, failed):  # noqa: F811
    page = visit("Viewers").open("/admin/tasks/task/?status=FAILED")
    page.get_by_role("button", name="Русский").click()
    page.wait_for_selector("html[lang=ru]")
    assert page.url.endswith("/admin/tasks/task/?status=FAILED")
    assert page.get_by_role("navigation", name="Страницы").is_visible()
    assert page.locator("#task-rows").get_by_text("FAILED", exact=True).count() == 1
    assert_accessible(page)
    look(page, "dark", "wide")
    assert_accessible(page, **ONLY_COLOURS)
    page.get_by_role("button", name="English").click()
    page.wait_for_selector("html[lang=en]")
