"""The stock admin for tables that people only look at: paged without counting them whole."""

from typing import Any, cast

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

COUNT_CAP = 10_000


class CappedPaginator(Paginator):
    """Counts no further than COUNT_CAP rows; what lies beyond is reached by searching."""

    @cached_property
    def count(self) -> int:
        rows = cast("QuerySet[Any]", self.object_list)
        return rows[:COUNT_CAP].count()


class ReadOnlyAdmin(admin.ModelAdmin):
    """A list and a page for each row, and no way to change anything."""

    paginator = CappedPaginator
    show_full_result_count = False
    list_per_page = 50
    actions = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
