"""A real Chromium against a real server. A machine without a browser fails these tests; they are never skipped."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Error, Page, Response, expect, sync_playwright

from tests.browser.looks import SIZES
from tests.people import person

# The same engine without windows of a desktop, where it is installed (.ci/run): a quarter less processor time.
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium-headless-shell") or "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
COPYING = ["clipboard-read", "clipboard-write"]  # a window of a desktop has these without a question
PATIENCE = 20_000  # ms, for a page on a machine that is busy with other tests
# In the first document of a window: nothing that an earlier window of its context stored is there.
FORGET = """
if (location.protocol.startsWith("http") && !sessionStorage.getItem("is new")) {
    localStorage.clear();
    sessionStorage.setItem("is new", "no");
}
"""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this folder.

    Playwright keeps an event loop in this thread, which Django takes for a reason to refuse the ORM. So the refusal is
    off, and the browser gone, exactly for as long as this folder's tests run.
    """
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    expect.set_options(timeout=PATIENCE)
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
        self.answers: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.add_init_script(FORGET)
        self.page.on(
            "console", lambda message: self.complaints.append(message.text) if message.type == "error" else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", lambda request: self.answers.append(f"{request.url} {request.failure}"))
        self.page.on("response", self.note)

    def note(self, response: Response) -> None:
        self.answers.append(f"{datetime.now(UTC):%H:%M:%S} {response.status} {response.url}")

    def state(self) -> str:
        """Describe the window for the report of a failed test: its address, the last answers, and its text."""
        try:
            shown = self.page.locator("body").inner_text(timeout=5000)
        except Error as error:
            shown = str(error)
        answers = [f"{len(self.requests)} requests", *self.answers[-15:], f"{datetime.now(UTC):%H:%M:%S} now"]
        return "\n".join([self.page.url, *answers, re.sub(r"\s*\n\s*", " | ", shown)[:3000]])

    def leave(self) -> None:
        """Close what was opened, and log out; nothing is asked of a page that may hang."""
        for page in self.context.pages[1:]:
            page.close()
        self.context.clear_cookies()

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


class Rooms:
    """Browser contexts that are kept for the next test: a new one costs the processor more than all that a test does.

    Each keeps a page open, and with it the process in which the next window of the context is at once at work.
    """

    def __init__(self, browser: Browser, base: str) -> None:
        self.browser = browser
        self.base = base
        self.free: list[BrowserContext] = []

    def take(self) -> BrowserContext:
        if self.free:
            return self.free.pop()
        context = self.browser.new_context(locale="en-GB", permissions=COPYING)
        context.new_page().goto(f"{self.base}/static/dashboard/icon.svg")
        return context

    def give_back(self, visitor: Visitor) -> None:
        visitor.leave()
        self.free.append(visitor.context)


@pytest.fixture(scope="package")
def rooms(browser: Browser, live_server) -> Rooms:
    return Rooms(browser, live_server.url)


@pytest.fixture
def visit(request: pytest.FixtureRequest, browser: Browser, rooms: Rooms, live_server) -> Iterator[Visit]:
    """Opens windows: `visit("Operators", theme="dark", size="narrow")`; none of them may have had an error.

    A window with options of its own (of Playwright's `new_context`) has a context of its own.
    """
    visitors: list[Visitor] = []
    own: list[BrowserContext] = []

    def open_window(
        *groups: str, theme: str = "light", size: str = "wide", base: str = live_server.url, **options: object
    ) -> Visitor:
        if options:
            own.append(browser.new_context(**{"locale": "en-GB", **options}))
        visitor = Visitor(own[-1] if options else rooms.take(), base)
        visitors.append(visitor)
        visitor.page.set_viewport_size(SIZES[size])
        visitor.page.emulate_media(color_scheme=theme)
        if groups:
            visitor.log_in(person(*groups))
        return visitor

    failed_before = request.session.testsfailed
    yield open_window
    if request.session.testsfailed > failed_before:
        print(*(visitor.state() for visitor in visitors), sep="\n\n")
    complaints = [complaint for visitor in visitors for complaint in visitor.complaints]
    for visitor in visitors:
        if visitor.context in own:
            visitor.context.close()
        else:
            rooms.give_back(visitor)
    assert complaints == []
