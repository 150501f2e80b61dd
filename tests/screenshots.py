"""Take the pictures of the pages: `python -m tests.screenshots` starts a fresh demo and photographs it.

They show a first `make run`, with nothing staged except the demo itself.
"""

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

from tests.dashboard import sites
from tests.dashboard.servers import ROOT
from tests.waiting import wait_until

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu"]
FOLDER = ROOT / "docs" / "images"
PASSWORD = "for the pictures"
LARGEST_BYTES = 150_000
MINUTES_OF_WORK = 2


class Shot(NamedTuple):
    """One picture: file, page, theme, the window's height, an element to wait for, and a link on the page to follow."""

    name: str
    path: str
    theme: str
    height: int
    waits_for: str
    link: str = ""


SHOTS = (
    Shot("overview", "/admin/", "light", 860, "#overview"),
    Shot("tasks", "/admin/tasks/task/", "light", 640, "#task-rows"),
    Shot("task", "/admin/tasks/task/?status=FAILED", "dark", 860, ".failure", "#task-rows tbody th a"),
    Shot("failures", "/admin/ops/failures/", "light", 400, "#failure-kinds"),
    Shot("locks", "/admin/ops/locks/", "dark", 640, "#lock-tree button[data-action=terminate-backend]"),
    Shot("history", "/admin/ops/locks/history/", "light", 640, ".timeline"),
    Shot("stuck", "/admin/ops/stale/", "light", 400, "#stale-rows"),
    Shot("queues", "/admin/tasks/queue/", "dark", 440, "#queue-rows"),
    Shot("workers", "/admin/ops/workers/", "light", 400, "#worker-rows"),
    Shot("schedules", "/admin/ops/schedule/", "dark", 400, "#schedule-rows"),
    Shot("limits", "/admin/ops/limits/", "light", 400, "#limit-rows"),
    Shot("lab", "/admin/ops/lab/compare/?run=1&run=2&run=3", "dark", 640, "#content table"),
    Shot("audit", "/admin/ops/audit/", "light", 440, "#audit-rows"),
    Shot("orders", "/admin/orders/order/", "dark", 640, "#result_list"),
    Shot(
        "enqueue",
        "/admin/tasks/task/enqueue/",
        "light",
        640,
        "[data-action=enqueue]",
        "#known-tasks tbody tr:last-child a",
    ),
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkout = sites.new_checkout(Path(folder) / "checkout")
        with sites.running(checkout, ADMIN_PASSWORD=PASSWORD) as site, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            prepare(window(browser, site.url, SHOTS[0]))
            for shot in SHOTS:
                take(window(browser, site.url, shot), shot)
            browser.close()
            site.end()


def window(browser: Browser, url: str, shot: Shot) -> Page:
    """A logged-in window with the shot's theme and size."""
    size = {"width": 1280, "height": shot.height}
    context = browser.new_context(color_scheme=shot.theme, viewport=size, locale="en-GB", base_url=url)
    page = context.new_page()
    page.goto("/admin/login/?next=/admin/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.locator("#overview").wait_for()
    return page


def prepare(page: Page) -> None:
    """Let the demo work and measure the lab for a while, and kill two of its workers."""
    page.goto("/admin/ops/demo/")
    page.locator("#scene-lab td.number").get_by_text("3").wait_for(timeout=120_000)
    for number in (1, 2):
        page.locator(".demo-kill [name=do]").click()
        page.locator("#demo-kills strong").nth(number - 1).wait_for(timeout=60_000)
    page.wait_for_timeout(MINUTES_OF_WORK * 60_000)


def take(page: Page, shot: Shot) -> None:
    page.goto(shot.path)
    if shot.link:
        page.goto(page.locator(shot.link).first.evaluate("link => link.href"))
    page.locator(shot.waits_for).first.wait_for()
    wait_until(lambda: page.evaluate("document.fonts.status") == "loaded")
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{shot.name}-{shot.theme}.png"
    page.screenshot(path=path)
    assert path.stat().st_size <= LARGEST_BYTES, f"{path.name} has {path.stat().st_size} bytes"
    print(path.relative_to(ROOT), path.stat().st_size)


if __name__ == "__main__":
    main()
