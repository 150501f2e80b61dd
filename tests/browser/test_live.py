"""Panels that refresh themselves destroy nothing that a person is doing, and say what they know and how old it is."""

import math
import re
import threading

import pytest
from playwright.sync_api import Page, Route

from dashboard.live import seats
from tasks.models import Attempt, Task
from tests.sessions import session
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
LIST, STALE = "/admin/tasks/task/", "/admin/ops/stale/"


@pytest.fixture
def tasks(live_server) -> list[Task]:
    """Three tasks of a dead worker, in the order in which they are shown."""
    worker = rows.dead_worker()
    return [rows.processing(worker) for _ in range(3)]


def row(page: Page, task: Task):
    return page.locator(f"#stale-{task.pk}")


def version(page: Page, task: Task) -> str:
    return row(page, task).locator(".version").inner_text()


def change(task: Task) -> None:
    """Somebody edits the row: its version grows."""
    Task.objects.filter(pk=task.pk).update(priority=7)


def waiting(page: Page, condition) -> None:
    """Wait for `condition` while the page goes on."""
    wait_until(lambda: page.wait_for_timeout(50) or condition())


def news(page: Page) -> str:
    return page.locator(".live-news").inner_text() if page.locator(".live-news:not(.is-empty)").count() else ""


def test_the_time_is_told_here_and_in_utc(visit):
    page = visit("Viewers", timezone_id="Asia/Kolkata").open("/admin/")
    times = re.fullmatch(r"(\d\d):(\d\d) local · (\d\d):(\d\d) UTC", page.locator("[data-live-clock]").inner_text())
    local, utc = int(times[1]) * 60 + int(times[2]), int(times[3]) * 60 + int(times[4])
    assert (local - utc) % (24 * 60) == 5 * 60 + 30


def test_an_untouched_row_follows_and_the_page_says_how_old_it_is(visit, tasks):
    page = visit("Operators").open(STALE)
    change(tasks[1])
    waiting(page, lambda: version(page, tasks[1]) == "v3")
    assert version(page, tasks[0]) == "v2"
    assert re.fullmatch(r"updated \d+ s ago", page.locator("[data-live-age]").inner_text())
    assert news(page) == ""


def test_a_ticked_row_freezes_until_it_is_asked_for(visit, tasks):
    page = visit("Operators").open(STALE)
    page.get_by_label(f"Tick #{tasks[0].pk}").check()
    page.mouse.move(0, 0)
    change(tasks[0]), change(tasks[2])
    waiting(page, lambda: version(page, tasks[2]) == "v3")
    assert version(page, tasks[0]) == "v2"
    assert news(page).split("\n")[0].startswith("1 row changed")
    assert page.get_by_label(f"Tick #{tasks[0].pk}").is_checked()

    page.get_by_role("button", name="Show").click()
    assert version(page, tasks[0]) == "v3"
    assert page.get_by_label(f"Tick #{tasks[0].pk}").is_checked()
    assert news(page) == ""


def test_a_ticked_row_that_has_gone_stays_and_says_so(visit, tasks):
    page = visit("Operators").open(STALE)
    page.get_by_label(f"Tick #{tasks[1].pk}").check()
    page.mouse.move(0, 0)
    Task.objects.filter(pk=tasks[1].pk).update(status="READY", claimed_by=None)
    row(page, tasks[1]).and_(page.locator("[data-gone]")).wait_for()
    assert "1 row changed" in news(page)
    page.get_by_role("button", name="Show").click()
    assert row(page, tasks[1]).count() == 0
    assert page.locator("[data-ticked]").inner_text().endswith(":")


def test_the_focus_stays_where_it_is(visit, tasks):
    page = visit("Operators").open(STALE)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("j")
    focused = "document.activeElement.textContent"
    assert page.evaluate(focused) == f"#{tasks[1].pk}"
    Task.objects.filter(pk=tasks[0].pk).update(status="READY", claimed_by=None)
    row(page, tasks[0]).wait_for(state="detached")
    assert page.evaluate(focused) == f"#{tasks[1].pk}"


def test_selected_text_stays_selected(visit, tasks):
    page = visit("Operators").open(STALE)
    row(page, tasks[1]).locator(".path").first.select_text()
    selected = "getSelection().toString()"
    before = page.evaluate(selected)
    change(tasks[1]), change(tasks[2])
    waiting(page, lambda: version(page, tasks[2]) == "v3")
    assert page.evaluate(selected) == before == "nothing"
    assert "1 row changed" in news(page)


def test_no_button_moves_under_the_pointer(visit, tasks):
    page = visit("Operators").open(STALE)
    button = row(page, tasks[2]).locator("button[data-action]")
    button.hover()
    place = button.bounding_box()
    Task.objects.filter(pk=tasks[0].pk).update(status="READY", claimed_by=None)
    waiting(page, lambda: "changed" in news(page))
    assert button.bounding_box() == place
    assert row(page, tasks[0]).count() == 1
    page.mouse.move(1, 1)
    row(page, tasks[0]).wait_for(state="detached")
    assert news(page) == ""


def test_a_button_in_focus_is_neither_doubled_nor_lost_when_what_precedes_it_changes(visit, tasks):
    page = visit("Operators").open(STALE)
    buttons = page.locator("#take-all button[data-action=recover]")
    page.keyboard.press("Tab")
    page.evaluate("document.querySelector('#take-all button').focus({ focusVisible: true })")
    focused = "document.activeElement.matches('#take-all button')"
    rows.processing(rows.dead_worker("w-second"))
    page.locator("#take-all input[value=w-second]").wait_for(state="attached")
    Task.objects.filter(claimed_by="w-dead").update(status="READY", claimed_by=None)
    page.locator("#take-all input[value=w-dead]").wait_for(state="detached")
    assert (buttons.count(), page.evaluate(focused)) == (1, True)


def test_what_is_half_typed_and_where_the_page_was_scrolled_to_stay(visit, live_server):
    ids = rows.many(50)
    visitor = visit("Operators")
    page = visitor.open(LIST)
    field = page.locator("[data-search]")
    field.fill("half a wo")
    middle = page.locator(f"#task-{ids[20]}")
    middle.scroll_into_view_if_needed()
    page.evaluate("scrollBy(0, 300)")
    place = middle.bounding_box()["y"]
    new = rows.ready()
    page.locator(f"#task-{new.pk}").wait_for(state="attached")
    assert abs(middle.bounding_box()["y"] - place) < 2
    assert field.input_value() == "half a wo"


def test_what_a_person_has_unfolded_stays_unfolded(visit, live_server):
    task = rows.ready()
    Attempt.objects.create(task=task, number=1, worker_id="w7f", outcome="failed", traceback="line 1\nline 2")
    visitor = visit("Operators")
    page = visitor.open(f"{LIST}{task.pk}/")
    page.locator("#content details:has(pre) summary").first.click()
    page.mouse.move(0, 0)
    Task.objects.filter(pk=task.pk).update(priority=9)
    waiting(page, lambda: "v2" in page.locator("#content").inner_text())
    assert page.locator("#content details pre", has_text="line 2").is_visible()


def test_a_paused_page_asks_again_once_it_is_resumed(visit, tasks):
    page = visit("Operators").open(STALE)
    pause = page.locator("[data-live-pause]")
    pause.click()
    assert (pause.inner_text(), pause.get_attribute("aria-pressed")) == ("Resume", "true")
    change(tasks[0])
    age = page.locator("[data-live-age]")
    waiting(page, lambda: re.search(r" [4-9] ", age.inner_text()))
    assert version(page, tasks[0]) == "v2"
    pause.click()
    waiting(page, lambda: version(page, tasks[0]) == "v3")


def answer_panels(page: Page, **answer: object) -> None:
    """From now on each request of a panel is answered so."""

    def fulfill(route: Route) -> None:
        if route.request.headers.get("hx-request"):
            route.fulfill(content_type="text/html", **answer)
        else:
            route.fallback()

    page.route("**/ops/**", fulfill)


# What the page does when it is seen again, and what when it is hidden: it asks, and it waits to ask.
SEEN_AND_HIDDEN = """() => {
    let asked = 0, waits = 0;
    document.addEventListener("htmx:configRequest", () => { asked += 1; });
    const plain = window.setTimeout;
    window.setTimeout = (...given) => { waits += 1; return plain(...given); };
    document.dispatchEvent(new Event("visibilitychange"));
    Object.defineProperty(document, "hidden", { get: () => true, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
    return [asked, waits];
}"""


def test_a_panel_that_has_ended_asks_no_more(visit, tasks):
    page = visit("Operators").open(STALE)
    answer_panels(page, status=286, body='<p id="ended">It is over.</p>')
    page.locator("#ended").wait_for()
    waiting(page, lambda: page.locator("[data-live-age]").inner_text().startswith("ended"))
    assert page.locator("[data-live-pause]").is_hidden()  # nothing is left to pause
    assert page.evaluate(SEEN_AND_HIDDEN) == [0, 0]


# Every wait that the page's scripts begin, ms.
RECORD_DELAYS = """
    window.delays = [];
    const plain = window.setTimeout;
    window.setTimeout = (act, delay, ...rest) => { window.delays.push(delay); return plain(act, delay, ...rest); };
"""


def test_a_process_that_starts_is_told_and_soon_asked_again(visit, tasks, monkeypatch):
    visitor = visit("Operators")
    visitor.page.add_init_script(RECORD_DELAYS)
    page = visitor.open(STALE)
    page.evaluate("window.delays = []")
    monkeypatch.setattr(seats, "_starts_until", math.inf)
    monkeypatch.setattr(seats, "_seats", threading.Semaphore(0))
    banner = page.locator(".live-banner")
    banner.wait_for()
    told = "The dashboard is starting; this page asks again by itself. What you see is the state of "
    assert banner.inner_text().startswith(told)
    assert version(page, tasks[0]) == "v2"
    waiting(page, lambda: page.evaluate("window.delays.some((delay) => delay >= 500 && delay < 1500)"))
    monkeypatch.setattr(seats, "_seats", None)
    change(tasks[0])
    waiting(page, lambda: version(page, tasks[0]) == "v3")
    assert banner.is_hidden()
    page.evaluate("window.delays = []")
    waiting(page, lambda: page.evaluate("window.delays.includes(2000)"))


def test_a_locked_table_is_told_with_its_holder_and_the_age_of_what_is_shown(visit, tasks):
    visitor = visit("Operators")
    page = visitor.open(STALE)
    banner = page.locator(".live-banner")
    with session("psql") as other:
        other.execute("LOCK TABLE tasks_task")
        banner.wait_for()
        told = banner.inner_text()
        assert f"pid {other.info.backend_pid} · psql · user {other.info.user} · holds tasks_task" in told
        assert f"python manage.py signal_backend {other.info.backend_pid} --started" in told
        waiting(page, lambda: int(re.search(r"state of [\d:]+, (\d+) s ago", banner.inner_text())[1]) >= 3)
        assert version(page, tasks[0]) == "v2"
    waiting(page, banner.is_hidden)
    visitor.complaints.clear()


def test_a_hidden_page_asks_less_often(visit, tasks):
    visitor = visit("Operators")
    visitor.page.add_init_script(RECORD_DELAYS)
    page = visitor.open(STALE)
    assert page.evaluate("window.delays.includes(2000)")
    page.evaluate("""() => {
        window.delays = [];
        Object.defineProperty(document, "hidden", { get: () => true, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }""")
    assert page.evaluate("window.delays") == [30_000]


def test_what_is_new_and_what_is_over_is_said_politely(visit, tasks):
    page = visit("Operators").open(STALE)
    region = page.locator("#live-region")
    assert region.get_attribute("role") == "status"
    assert region.inner_text() == ""
    rows.processing(rows.dead_worker("w-second"))
    waiting(page, lambda: "New: Worker dead: w-second" in region.inner_text())
    Task.objects.filter(claimed_by="w-second").update(status="READY", claimed_by=None)
    page.locator("#stale-rows", has_text="w-second").wait_for(state="detached")
    age = page.locator("[data-live-age]")
    for seconds in ("2", "0|1"):  # the page has looked around meanwhile, more than once
        waiting(page, lambda seconds=seconds: re.search(f" ({seconds}) s", age.inner_text()))
    assert "Resolved" not in region.inner_text(), "one voice, at most every fifteen seconds"
    page.evaluate("const now = Date.now; Date.now = () => now() + 15_000")
    waiting(page, lambda: "Resolved: Worker dead: w-second" in region.inner_text())


def test_what_came_later_can_be_copied_and_sent_once(visit, live_server):
    page = visit("Operators", permissions=["clipboard-read", "clipboard-write"]).open(STALE)
    rows.processing(rows.dead_worker())
    copy = page.locator("#take-all [data-copy]")
    copy.wait_for()
    copy.click()
    assert page.evaluate("navigator.clipboard.readText()") == "python manage.py recover_tasks"
    page.locator("#take-all button[data-action=recover]").click()
    page.locator("form.confirm button[data-action=recover]").dblclick()
    assert "1 task was taken back" in page.locator(".messagelist").inner_text()
