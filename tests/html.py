"""Pages as texts that tests compare, and the buttons of a page."""

import html
import re
from html.parser import HTMLParser


def flat(page: str) -> str:
    """The page without the blanks and line ends that its template's layout adds.

    >>> flat('<td>\\n  <a href="/"\\n    class="path">3+\\n</a></td>')
    '<td><a href="/" class="path">3+</a></td>'
    """
    return re.sub(r"(?<=>) | (?=<)", "", re.sub(r"\s+", " ", page))


def tabs_of(page: str) -> dict[str, str]:
    """The number on each tab of the page, an empty text where there is none."""
    tabs = flat(page).partition('<nav class="tabs"')[2].partition("</nav>")[0]
    links = re.findall(r"<a[^>]*>([^<]+)(?:<span[^>]*>([^<]*)</span>)?</a>", tabs)
    return {label.strip(): number for label, number in links}


def answers(page: str) -> str:
    """The answers to what was done, without their links."""
    found = page.partition('<ul class="messagelist">')[2].partition("</ul>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", found)).split())


def hidden(page: str) -> dict[str, str]:
    """The hidden fields of a preview's form."""
    form = page[page.index('<form class="confirm"') :].partition("</form>")[0]
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in found}


def pressable(page: str, here: str) -> list[str]:
    """Where the buttons of the page at `here` post to, without those that are disabled.

    >>> pressable('<form method="post" action="/a"><button>A</button><button disabled>B</button></form>', "/")
    ['/a']
    """
    buttons = Buttons(here)
    buttons.feed(page)
    return buttons.targets


class Buttons(HTMLParser):
    """Collects the targets of buttons in forms that post."""

    def __init__(self, here: str) -> None:
        super().__init__()
        self.here = here
        self.targets: list[str] = []
        self.form: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "form":
            self.form = found if (found.get("method") or "").lower() == "post" else None
        is_button = tag in ("button", "input") and found.get("type", "submit" if tag == "button" else "") == "submit"
        is_post = self.form is not None and found.get("formmethod") != "get"
        if is_post and is_button and "disabled" not in found:
            self.targets.append(found.get("formaction") or self.form.get("action") or self.here)

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self.form = None
