"""A real Chromium against a real server. A machine without a browser fails these tests; they are never skipped."""

import os
from collections.abc import Callable, Iterator

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.people import person

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SIZES = {"wide": {"width": 1280, "height": 900}, "narrow": {"width": 360, "height": 800}}


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this folder.

    Playwright keeps an event loop in this thread, which Django takes for a reason to refuse the ORM. So the refusal is
    off, and the browser gone, exactly for as long as this folder's tests run.
    """
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


class Visitor:
    """A browser window on the test's server, and what its console complained of."""

    def __init__(self, context: BrowserContext, base: str) -> None:
        self.context = context
        self.base = base
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(10_000)
        self.page.on(
            "console", lambda message: self.complaints.append(message.text) if message.type == "error" else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def log_in(self, user: User) -> None:
        """As the login page does, without the page."""
        client = Client()
        client.force_login(user)
        cookie = client.cookies[settings.SESSION_COOKIE_NAME]
        self.context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": self.base}])

    def open(self, path: str) -> Page:
        self.page.goto(self.base + path)
        return self.page


Visit = Callable[..., Visitor]


@pytest.fixture
def visit(browser: Browser, live_server) -> Iterator[Visit]:
    """Opens windows: `visit("Operators", theme="dark", size="narrow")`; none of them may have had an error."""
    visitors: list[Visitor] = []

    def open_window(
        *groups: str, theme: str = "light", size: str = "wide", base: str = live_server.url, **options: object
    ) -> Visitor:
        options = {"locale": "en-GB", **options}
        context = browser.new_context(color_scheme=theme, viewport=SIZES[size], **options)
        visitors.append(Visitor(context, base))
        if groups:
            visitors[-1].log_in(person(*groups))
        return visitors[-1]

    yield open_window
    complaints = [complaint for visitor in visitors for complaint in visitor.complaints]
    for visitor in visitors:
        visitor.context.close()
    assert complaints == []
