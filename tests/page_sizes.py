"""Measure each page as an operator sees it: `python -m tests.page_sizes [URL PASSWORD]`.

Without an address it starts a fresh demo. It prints a table row for each page: rows that are whole on a screen of 1280
by 900, where the first one begins, the height of the page, its words, and its visible controls.
"""

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

from tests.dashboard import sites
from tests.screenshots import ARGUMENTS, CHROMIUM, PASSWORD

PAGES = {
    "overview": "/admin/",
    "stuck": "/admin/ops/stale/",
    "tasks": "/admin/tasks/task/",
    "a failed task": "/admin/tasks/task/?status=FAILED",
    "failures": "/admin/ops/failures/",
    "database locks": "/admin/ops/locks/",
    "orders": "/admin/orders/order/",
    "accounts": "/admin/orders/account/",
    "queues": "/admin/tasks/queue/",
    "workers": "/admin/ops/workers/",
    "schedules": "/admin/ops/schedule/",
    "lab": "/admin/ops/lab/",
    "audit": "/admin/ops/audit/",
    "enqueue": "/admin/tasks/task/enqueue/",
}
# A row is a line of a table or a session of the lock tree; a cell that spans the table says that it is empty.
MEASURE = """
() => {
    const content = document.getElementById("content");
    const rows = [...content.querySelectorAll("tbody tr, #lock-tree li")]
        .filter((row) => row.checkVisibility() && !row.querySelector("td[colspan]"));
    const boxes = rows.map((row) => (row.matches("li") ? row.firstElementChild : row).getBoundingClientRect());
    const shown = content.innerText;
    return {
        rows: boxes.filter((box) => box.bottom <= innerHeight).length,
        first: boxes.length ? Math.round(Math.min(...boxes.map((box) => box.top))) : null,
        height: document.documentElement.scrollHeight,
        words: shown.split(/\\s+/).filter(Boolean).length,
        controls: [...content.querySelectorAll("a, button, input, select, textarea, summary")]
            .filter((one) => one.type !== "hidden" && one.checkVisibility()).length,
    };
}
"""


class Size(NamedTuple):
    """A page: rows whole on the first screen, pixels from the top to the first one, pixels, words, controls."""

    rows: int
    first: int | None
    height: int
    words: int
    controls: int


def main(arguments: list[str]) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        if arguments:
            report(browser, *arguments)
        else:
            with tempfile.TemporaryDirectory() as folder:
                checkout = sites.new_checkout(Path(folder) / "checkout")
                with sites.running(checkout, ADMIN_PASSWORD=PASSWORD) as site:
                    report(browser, site.url, PASSWORD)
                    site.end()
        browser.close()


def report(browser: Browser, url: str, password: str) -> None:
    page = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=url).new_page()
    page.goto("/admin/login/?next=/admin/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    page.locator("#overview").wait_for()
    page.wait_for_timeout(45_000)  # until the demo has staged its scenes
    print("| page | rows | first row at | height | words | controls |\n|---|--:|--:|--:|--:|--:|")
    for name, path in PAGES.items():
        size = measured(page, name, path)
        if size is not None:
            print(f"| {name} |", " | ".join("-" if value is None else f"{value:,}" for value in size), "|", flush=True)


def measured(page: Page, name: str, path: str) -> Size | None:
    """The size of the page, or None if this version has none there."""
    answer = page.goto(path)
    if answer is None or answer.status == 404:
        return None
    if name.startswith("a "):
        page.goto(page.locator("#task-rows a[href*='/task/']:text-matches('^#')").first.get_attribute("href") or path)
    page.wait_for_load_state("networkidle") if not page.locator("[data-live]").count() else page.wait_for_timeout(1500)
    return Size(**page.evaluate(MEASURE))


if __name__ == "__main__":
    main(sys.argv[1:])
