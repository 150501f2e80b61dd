"""Pages as texts that tests compare."""

import html
import re


def flat(page: str) -> str:
    """The page without the blanks and line ends that its template's layout adds.

    >>> flat('<td>\\n  <a href="/"\\n    class="path">3+\\n</a></td>')
    '<td><a href="/" class="path">3+</a></td>'
    """
    return re.sub(r"(?<=>) | (?=<)", "", re.sub(r"\s+", " ", page))


def hidden(page: str) -> dict[str, str]:
    """The hidden fields of a preview's form."""
    form = page[page.index('<form class="confirm"') :]
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in found}
