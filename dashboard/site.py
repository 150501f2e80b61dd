"""Our AdminSite: the operators' pages beside the stock ones."""

from django.contrib.admin import AdminSite


class RowlockAdminSite(AdminSite):
    site_header = site_title = "Rowlock"
