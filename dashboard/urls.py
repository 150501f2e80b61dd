"""The site's URLs; operators' pages are below the admin."""

from importlib.util import find_spec

from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.utils.functional import lazy
from django.views.generic import RedirectView

from dashboard.metrics import metrics

handler400 = "dashboard.middleware.bad_request"
handler403, handler404 = "dashboard.site.permission_denied", "dashboard.site.page_not_found"
handler500 = "dashboard.site.server_error"
ICON = lazy(static, str)("dashboard/icon.svg")  # its name has a checksum, which must not be read at import

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    # Browsers request it for pages without an icon of their own. A "Not found" page would replace the CSRF token that
    # the open page just got.
    path("favicon.ico", RedirectView.as_view(url=ICON)),
    path("admin/", admin.site.urls),
    path("metrics", metrics),
    *([path("api/v1/", include("dashboard.api.urls"))] if find_spec("ninja") else []),  # rowlock[api]
]
