"""Every address of the site; operators' pages hang below the admin."""

from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView
from django.views.i18n import set_language

from dashboard.views.metrics import metrics

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/language/", set_language, name="set_language"),
    path("admin/", admin.site.urls),
    path("metrics", metrics),
]
