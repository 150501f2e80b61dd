"""Our AdminSite, and the mixin for a project's own: the stock admin with the operators' pages and their menu."""

import logging
from collections.abc import Callable
from functools import partial, wraps
from itertools import chain
from typing import TYPE_CHECKING, Any

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import Resolver404, URLPattern, URLResolver, path
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy as _
from django.views.decorators.csrf import requires_csrf_token
from django.views.i18n import set_language

from dashboard import links, middleware, project
from dashboard.layout import FLEET, error_page, pages
from tasks.support import addresses
from tasks.support.reading import Unreadable

logger = logging.getLogger(__name__)


@requires_csrf_token
def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The handler of 403."""
    return error_page(request, "dashboard/403.html", {"exception": str(exception)}, status=403)


@requires_csrf_token
def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The handler of 404; an address that leads nowhere has no sentence of its own."""
    sentence = "" if isinstance(exception, Resolver404) else str(exception)
    return error_page(request, "dashboard/404.html", {"exception": sentence}, status=404)


@requires_csrf_token
def server_error(request: HttpRequest) -> HttpResponse:
    """The handler of 500: without the menu if the menu fails too."""
    answer = middleware.server_error(request)
    if answer.status_code != 500:
        return answer
    try:
        return error_page(request, "dashboard/500.html", {"layout": "shared/base_site.html"}, status=500)
    except Exception:
        logger.exception("The page of an error has no menu")
        return answer


# The mixin's base is a site only for type checkers: a project names its own class behind it.
if TYPE_CHECKING:
    Base = AdminSite
else:
    Base = object


class RowlockAdminSiteMixin(Base):
    """The operators' pages in a project's own admin site, under any name and path.

    class ShopAdminSite(RowlockAdminSiteMixin, admin.AdminSite): ...
    """

    has_people = False  # users and groups are the business of a project whose site is its own
    enable_nav_sidebar = False
    logout_template = "dashboard/logged_out.html"

    def __init__(self, name: str = "admin") -> None:
        super().__init__(name)
        addresses.know(name)

    def get_urls(self) -> list[URLPattern | URLResolver]:
        """The operators' pages come before the stock ones, whose last pattern catches everything.

        They need the apps, so they are imported here.
        """
        from dashboard.admin import register_pages
        from dashboard.views import (
            alerts,
            audit,
            burst,
            demo,
            failures,
            fleet,
            lab,
            limits,
            locks,
            overview,
            palette,
            schedule,
            stale,
            workers,
        )

        register_pages(self)
        modules = (
            alerts, audit, burst, demo, failures, fleet, lab, limits, locks, overview, palette, schedule, stale,
            workers,
        )  # fmt: skip
        own = [
            path("", self.page_view(self.index), name="index"),
            path("all/", self.admin_view(super().index), name="models"),
            path("language/", set_language, name="set_language"),
        ]
        return [*chain.from_iterable(module.paths(self.page_view) for module in modules), *own, *super().get_urls()]

    def index(  # type: ignore[override]  # its part, for htmx, is rendered already
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The overview, in place of the stock list of models."""
        from dashboard.views import overview

        return overview.overview(request)

    def admin_view(self, view: Callable[..., Any], cacheable: bool = False) -> Any:
        """Wrap every page, so that it needs nothing from the project's MIDDLEWARE and error handlers."""
        return self._wrapped(view, cacheable, is_ours=False)

    def page_view(self, view: Callable[..., Any]) -> Any:
        """Wrap a page of ours: its verbs commit by themselves, so ATOMIC_REQUESTS must not hold them together."""
        return transaction.non_atomic_requests(self._wrapped(view, False, is_ours=True))

    def _wrapped(self, view: Callable[..., Any], cacheable: bool, *, is_ours: bool) -> Any:
        """A reason, name or number that cannot be read is answered with 400 and an explanation."""

        @wraps(view)
        def explained(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            try:
                response: HttpResponse = view(request, *args, **kwargs)
            except Unreadable as problem:
                return error_page(request, "dashboard/unreadable.html", {"problem": str(problem)}, status=400)
            except PermissionDenied as refusal:
                return permission_denied(request, refusal)
            except Http404 as missing:
                return page_not_found(request, missing)
            return response

        answered = middleware.for_a_page(super().admin_view(explained, cacheable), is_ours=is_ours)

        @wraps(answered)
        def at_this_site(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            request.current_app = self.name  # as stock pages do
            addresses.stand_at(self.name)
            return answered(request, *args, **kwargs)

        return at_this_site

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """The stock context with `navigation`: label, url, key, and `is_current` for the open page.

        It is lazy: a fragment that refreshes has no navigation and needs no counts.
        """
        context = super().each_context(request)
        navigation = SimpleLazyObject(partial(self.navigation, request))
        layout = {"site_layout": "shared/base_site.html", "languages": project.languages()}
        return {**context, "navigation": navigation, **layout}

    def navigation(self, request: HttpRequest) -> list[dict[str, Any]]:
        from dashboard.fleet.look import is_configured
        from dashboard.views.overview import counts_for

        shown = [page for page in pages() if not page.permission or request.user.has_perm(page.permission)]
        shown = [page for page in shown if page.url_name != FLEET or is_configured()]
        numbers = counts_for(request) if any(page.number for page in shown) else None
        found = []
        for page in shown:
            url = links.page(page.url_name)
            here = request.path == url or (bool(page.permission) and request.path.startswith(url))
            count = getattr(numbers, page.number) if page.number else 0
            label = f"{page.label} ({count})" if count else page.label
            found.append({"label": label, "url": url, "key": page.key, "is_current": here})
        return [link for link in found if link["url"]]


class RowlockAdminSite(RowlockAdminSiteMixin, AdminSite):
    has_people = True
    site_header = site_title = "Rowlock"
    index_title = _("All models")
    site_url = None
