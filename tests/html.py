"""Pages as texts that tests compare."""

import re


def flat(html: str) -> str:
    """The page without the blanks and line ends that its template's layout adds.

    >>> flat('<td>\\n  <a href="/"\\n    class="path">3+\\n</a></td>')
    '<td><a href="/" class="path">3+</a></td>'
    """
    return re.sub(r"(?<=>) | (?=<)", "", re.sub(r"\s+", " ", html))
