"""The second language on every page: nothing overflows, nothing breaks, and a person can choose it."""

import pytest

from tests.browser.test_looks import (  # noqa: F401  fixtures
    addresses,
    assert_accessible,
    assert_fits,
    failed,
)

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_every_page_fits_and_is_accessible(visit, addresses, size):  # noqa: F811
    visitor = visit("Operators", "Account managers", size=size)
    visitor.context.add_cookies([{"name": "django_language", "value": "ru", "url": visitor.base}])
    for address in addresses.values():
        page = visitor.open(address)
        assert page.locator("html").get_attribute("lang") == "ru"
        assert_fits(page)
        assert_accessible(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_person_chooses_a_language_at_the_foot_of_a_page(visit, failed, theme):  # noqa: F811
    page = visit("Viewers", theme=theme).open("/admin/tasks/task/?status=FAILED")
    page.get_by_role("button", name="Русский").click()
    page.wait_for_selector("html[lang=ru]")
    assert page.url.endswith("/admin/tasks/task/?status=FAILED")
    assert page.get_by_role("navigation", name="Страницы").is_visible()
    assert page.locator("#task-rows").get_by_text("FAILED", exact=True).count() == 1
    assert_accessible(page)
    page.get_by_role("button", name="English").click()
    page.wait_for_selector("html[lang=en]")
