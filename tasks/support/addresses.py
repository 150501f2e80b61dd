"""URLs of pages, cached, at the admin site that answers the request.

A list of tasks that refreshes itself needs the same 150 again and again; `reverse` takes 24 microseconds for each.
"""

from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.urls import get_script_prefix, reverse
from django.utils.translation import get_language

KEPT = 10_000

# Set by each page and never reset: the page is rendered after its view has returned.
_site: ContextVar[str] = ContextVar("rowlock_site", default="")
_known: list[str] = []


def stand_at(site: str) -> None:
    """Lead the addresses of this request to the admin site of this name."""
    _site.set(site)


def know(site: str) -> None:
    """Register an admin site with our pages; outside of requests, addresses lead to the first one."""
    _known.append(site)


def site() -> str:
    """The name of the admin site that addresses lead to."""
    return _site.get() or next(iter(_known), "admin")


def address(name: str, *args: Any) -> str:
    """The URL of the page of this name. Raises NoReverseMatch."""
    return _found((get_script_prefix(), settings.ROOT_URLCONF, get_language()), site(), name, args)


@lru_cache(maxsize=KEPT)
def _found(_around: tuple[str | None, ...], current_site: str, name: str, args: tuple[Any, ...]) -> str:
    """The address; a project may have the language in it (`i18n_patterns`)."""
    return reverse(name, args=args, current_app=current_site)
