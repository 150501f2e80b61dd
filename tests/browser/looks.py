"""What every page must be in both themes, wide and narrow: accessible, within the screen, and nothing inline."""

from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from playwright.sync_api import Page

SIZES = {"wide": {"width": 1280, "height": 900}, "narrow": {"width": 390, "height": 844}}
INLINE = "script:not([src]), style, [style], [onclick], [onload], a[href^='javascript:']"
# A finger needs 44 pixels, a mouse 24.
SMALL_TARGETS = """
(least) => [...document.querySelectorAll(
    "#content button, #content input[type=submit], nav.pages a, #content label:has(> input[type=checkbox])")]
    .filter((element) => element.checkVisibility())
    .map((element) => [element.textContent.trim(), element.getBoundingClientRect()])
    .filter(([text, box]) => box.height < least - 0.5 || box.width < least - 0.5)
    .map(([text, box]) => `${text}: ${box.width} by ${box.height}`)
"""
# The rules whose verdict on one and the same document a theme can change. They take half of axe's time.
OF_COLOURS = ["color-contrast", "link-in-text-block"]
ONLY_COLOURS = {"runOnly": OF_COLOURS}
ALL_BUT_COLOURS = {"rules": {rule: {"enabled": False} for rule in OF_COLOURS}}
# Every rule in both themes and at both widths, and what a theme can change in each combination of the two.
LOOKS = (
    ("light", "wide", {}),
    ("dark", "wide", ONLY_COLOURS),
    ("dark", "narrow", {}),
    ("light", "narrow", ONLY_COLOURS),
)
# No head of a column and no buttons of a row are wider than theirs; and what a field suggests can be read.
CUT = """
() => {
    const pen = document.createElement("canvas").getContext("2d");
    const isCut = (field) => {
        const style = getComputedStyle(field);
        pen.font = style.font;
        const room = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
        return pen.measureText(field.placeholder).width > room + 0.5;
    };
    const found = (selector) =>
        [...document.querySelectorAll(`#content ${selector}`)].filter((one) => one.checkVisibility());
    return [
        ...found(":is(thead th, .step)").filter((cell) => cell.scrollWidth > cell.clientWidth + 1),
        ...found("input[placeholder]:placeholder-shown").filter(isCut),
    ].map((element) => element.placeholder || element.textContent.trim().replace(/\\s+/g, " "));
}
"""
# Nothing of the content lies over the head of the page, where a click would not reach the menu. A dialog may.
COVERED = """
() => [...document.querySelectorAll("header :is(a, button, summary)")].filter((control) => {
    const box = control.getBoundingClientRect();
    const over = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    return control.checkVisibility() && over?.closest("#content") && !over.closest("dialog");
}).map((control) => control.outerHTML)
"""
# No rule that is on asks for the style sheets and media, which axe would fetch again before each run.
OPTIONS = {"resultTypes": ["violations"], "preload": False}
RUN = """
async ([within, options]) => {
    const late = new Promise((_, reject) => setTimeout(() => reject(new Error("axe took a minute")), 60_000));
    return { violations: (await Promise.race([axe.run(within, options), late])).violations };
}
"""
# Not waited for: now and then a transition never ends, and nothing in the page says so.
SETTLE = """
() => document.getAnimations().filter((animation) => animation instanceof CSSTransition)
    .forEach((transition) => transition.finish())
"""


def assert_accessible(page: Page, within: str = "html", **options: object) -> None:
    """Axe finds nothing in this part of the page (a selector), by all rules that are on, or with these options."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found = AxeResults(page.evaluate(RUN, [within, {**OPTIONS, **options}]))
    assert found.violations_count == 0, f"{page.url} {page.viewport_size}: {found.generate_report()}"


def assert_fits(page: Page) -> None:
    wide, screen = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= screen, page.url
    assert page.evaluate(SMALL_TARGETS, 44 if screen < 600 else 24) == [], page.url
    cut = page.evaluate(CUT)
    assert cut == [], f"{page.url} {page.viewport_size}: {cut}"
    covered = page.evaluate(COVERED)
    assert covered == [], f"{page.url} {page.viewport_size}: {covered}"


def assert_nothing_inline(page: Page) -> None:
    assert page.locator(INLINE).count() == 0, page.url


def look(page: Page, theme: str, size: str) -> None:
    """Show the open page so. What a script folds on a phone it folds while the page loads, so that one is reloaded."""
    page.emulate_media(color_scheme=theme)
    if page.viewport_size != SIZES[size]:
        page.set_viewport_size(SIZES[size])
        if page.locator("[data-fold]").count():
            page.reload()
    page.evaluate(SETTLE)


def assert_looks_right(page: Page) -> None:
    """The page, open light and wide, in both themes, wide and narrow; it is left as it was."""
    for theme, size, options in LOOKS:
        look(page, theme, size)
        assert_accessible(page, **options)
        assert_fits(page)
        assert_nothing_inline(page)
    look(page, "light", "wide")
