"""A window that goes from page to page and presses buttons; both themes must offer the same, accessibly."""

from playwright.sync_api import Page, expect

from tests.browser.looks import ONLY_COLOURS, assert_accessible, assert_fits, look
from tests.waiting import wait_until

OFFERED = """
() => [...document.querySelectorAll("button, summary, input[type=submit], a[data-action]")]
    .filter((element) => element.checkVisibility({visibilityProperty: true, opacityProperty: true})
        && getComputedStyle(element).pointerEvents !== "none")
    .map((element) => element.textContent.trim() || element.value)
"""


class Tour:
    """One window that goes from page to page."""

    def __init__(self, visitor) -> None:
        self.visitor = visitor
        self.page: Page = visitor.page

    def at(self, path: str) -> "Tour":
        self.visitor.open(path)
        wait_until(self.both_themes_offer_the_same)
        return self

    def both_themes_offer_the_same(self) -> bool:
        """Asked again where a part of the page was replaced in between."""
        offered = []
        for theme in ("dark", "light"):
            self.page.emulate_media(color_scheme=theme)
            offered.append(self.page.evaluate(OFFERED))
        return offered[0] == offered[1] != []

    def press(self, selector: str) -> "Tour":
        self.page.locator(selector).first.click()
        return self

    def menu(self, selector: str) -> "Tour":
        """Open the menu behind the three dots of this part."""
        return self.press(f"{selector} .menu summary")

    def named(self, name: str, **options: object) -> "Tour":
        self.page.get_by_role("button", name=name, **options).first.click()
        return self

    def says(self, text: str) -> "Tour":
        told = self.page.locator("#content, .messagelist, dialog").filter(has_text=text, visible=True)
        expect(told.first).to_be_visible(timeout=20_000)
        return self

    def look(self) -> None:
        """Look at the dialog alone, if one is open: the pages behind it are looked at by test_looks.py."""
        within = "dialog[open]" if self.page.locator("dialog[open]").count() else "html"
        assert_accessible(self.page, within)
        assert_fits(self.page)
        wait_until(self.both_themes_offer_the_same)
        look(self.page, "dark", "wide")  # the same document: what a theme can change in it are colours
        assert_accessible(self.page, within, **ONLY_COLOURS)
        assert_fits(self.page)
        look(self.page, "light", "wide")

    def confirm(self, reason: str = "because", button: str = "form.confirm button[type=submit]") -> "Tour":
        """Look at the preview, which tells the command, give a reason, and go on."""
        self.page.locator("form.confirm").wait_for()
        expect(self.page.locator(":is(#content, dialog) .command").first).to_be_visible()
        self.look()
        self.page.locator("form.confirm input[name=reason]").fill(reason)
        with self.page.expect_navigation():  # a dialog goes on once it has its answer
            self.press(button)
        return self
