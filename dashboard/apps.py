"""The dashboard's app, and the admin with our own site in place of the stock one."""

from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig


class DashboardConfig(AppConfig):
    name = "dashboard"


class RowlockAdminConfig(AdminConfig):
    default_site = "dashboard.site.RowlockAdminSite"
