"""Every address of the site; operators' pages hang below the admin."""

from django.contrib import admin
from django.templatetags.static import static
from django.urls import path
from django.utils.functional import lazy
from django.views.generic import RedirectView
from django.views.i18n import set_language

from dashboard.views.metrics import metrics

handler400, handler500 = "dashboard.middleware.bad_request", "dashboard.middleware.server_error"
ICON = lazy(static, str)("dashboard/icon.svg")  # its name carries a checksum, which is not read at import

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    # Browsers ask for it beside what has no icon of its own. A page that says "Not found" would give them a token
    # against forged requests, in the place of the one that a page has just got.
    path("favicon.ico", RedirectView.as_view(url=ICON)),
    path("admin/language/", set_language, name="set_language"),
    path("admin/", admin.site.urls),
    path("metrics", metrics),
]
