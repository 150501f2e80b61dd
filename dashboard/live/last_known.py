"""Show the last known state of the overview and the lists while a lock keeps them from being read.

Each web process keeps what it last answered: whole pages, and the fragments that tabs refresh. The key is that of the
shared fragments, so nobody gets a page that their rights would not show. What belongs to one person is cut out.
"""

import re
import threading
import time
from collections.abc import Hashable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.urls import ResolverMatch
from django.utils.cache import add_never_cache_headers
from django.utils.safestring import SafeString

from dashboard.layout import pages, site_context, site_of
from dashboard.live.fragment import key_of
from tasks.diagnosis.lock_holders import Holder

MOST = 100  # pages and fragments, of some 50 kB each
# Text from tasks is escaped, so that none of it can look like these. The first two say that a part could not be read.
INCOMPLETE = (b'data-attention="untold"', b"<!-- incomplete -->")
PERSONAL = re.compile(r"<!-- personal -->.*?<!-- /personal -->", re.DOTALL)
TOKEN = re.compile(r'(name="csrfmiddlewaretoken" value=")[^"]*')
BODY, CONTENT, END = re.compile(r"<body\b[^>]*>"), re.compile(r'<div id="content"[^>]*>'), "<!-- END Content -->"


class Kept(NamedTuple):
    """One answer. `is_part`: it is a fragment; `monotonic`: the time `at`, to tell its age."""

    text: str
    at: datetime
    monotonic: float
    is_part: bool

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self.monotonic


_guard = threading.Lock()
_kept: dict[Hashable, Kept] = {}  # the latest is last


def keep(request: HttpRequest, response: HttpResponse) -> None:
    """Keep this answer if it is the state of a list; one that repeats a kept state has an age already."""
    is_page = response.status_code == 200 and response.headers.get("Content-Type", "").startswith("text/html")
    if not is_page or response.has_header("Age") or not is_list(request):
        return
    text = PERSONAL.sub("", response.content.decode())
    key = key_of(request, "")
    with _guard:
        _kept.pop(key, None)
        _kept[key] = Kept(text, datetime.now(UTC), time.monotonic(), "HX-Request" in request.headers)
        if len(_kept) > MOST:
            del _kept[next(iter(_kept))]


def forget() -> None:
    """Drop everything, as between tests."""
    with _guard:
        _kept.clear()


def is_incomplete(response: HttpResponse) -> bool:
    """True if the overview or a list had to leave a part out."""
    return not response.streaming and any(marker in response.content for marker in INCOMPLETE)


def lists() -> dict[str, Any]:
    """The titles of the overview and the lists of the menu, by the names of their views."""
    # The list of all models shows what the person did last.
    return {page.url_name: page.label for page in pages() if page.url_name != "admin:models"}


def name_of(match: ResolverMatch) -> str:
    """The name of the view, whatever the site is called."""
    return f"{match.app_name}:{match.url_name}"


def is_list(request: HttpRequest) -> bool:
    """True if a person who may see pages asks for one of them."""
    match = request.resolver_match
    is_one = request.method == "GET" and match is not None and name_of(match) in lists()
    return is_one and site_of(request).has_permission(request)


def known(request: HttpRequest) -> Kept | None:
    """The last known state of this page for a person with these rights."""
    return _kept.get(key_of(request, "")) if is_list(request) else None


def answer(request: HttpRequest, kept: Kept, holders: Iterable[Holder]) -> HttpResponse:
    """The page as it was, under a fresh menu and the line that says how old it is and who holds the lock.

    A fragment stands in a page of its own. Either loads itself anew as soon as it can be read again (`live.js`).
    """
    assert request.resolver_match
    context = {"kept": kept, "holders": holders, "path": request.get_full_path()}
    notice = render_to_string("dashboard/_last_known.html", context, request)
    context |= {"title": lists()[name_of(request.resolver_match)], "notice": notice}
    panel = SafeString(kept.text if kept.is_part else "")  # nosec B703
    context |= {**site_context(request), "panel": panel}
    site = render_to_string("dashboard/last_known.html", context, request)
    text = site if kept.is_part else spliced(kept.text, site, notice)
    response = HttpResponse(TOKEN.sub(rf"\g<1>{get_token(request)}", text), headers={"Age": f"{kept.age_seconds:.0f}"})
    add_never_cache_headers(response)
    return response


def spliced(kept: str, site: str, notice: str) -> str:
    """The head and the content of the kept page, the menu and the foot of this reader's own."""
    parts = [(BODY.search(text), CONTENT.search(text), text.find(END)) for text in (kept, site)]
    (body, content, end), (own_body, own_content, own_end) = parts
    if not (body and content and own_body and own_content and end > 0 and own_end > 0):
        return site
    return "".join(
        (
            kept[: body.end()],
            site[own_body.end() : own_content.start()],
            kept[content.start() : content.end()],
            notice,
            kept[content.end() : end],
            site[own_end:],
        )
    )
