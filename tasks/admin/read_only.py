"""The stock admin for read-only tables: no full counts and no expensive lookups."""

from typing import Any, cast

from django.contrib import admin
from django.contrib.admin import FieldListFilter
from django.contrib.admin.utils import get_fields_from_path
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

COUNT_CAP = 10_000


class CappedPaginator(Paginator):
    """Counts at most COUNT_CAP rows; search reaches the rows beyond."""

    @cached_property
    def count(self) -> int:
        rows = cast("QuerySet[Any]", self.object_list)
        return rows[:COUNT_CAP].count()


class DeclaredFilters(admin.ModelAdmin):
    """A list whose URL accepts only the filters of `list_filter` and exact ids, else 400.

    Django accepts every lookup of every column: a regular expression kept the database busy for five seconds.
    """

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        is_text = "\0" not in str(value)  # PostgreSQL's text cannot hold NUL
        return is_text and (lookup in self._exact_ids() or lookup in self._declared(request))

    def _exact_ids(self) -> set[str]:
        keys: list[Any] = [field for field in self.opts.concrete_fields if field.primary_key or field.remote_field]
        names = {"pk", *(name for key in keys for name in (key.name, key.attname))}
        names |= {f"{key.name}__{key.target_field.name}" for key in keys if key.remote_field}
        return names | {f"{name}__exact" for name in names}

    def _declared(self, request: Any) -> set[str]:
        dates = {f"{self.date_hierarchy}__{part}" for part in ("year", "month", "day") if self.date_hierarchy}
        return dates | {name for item in self.get_list_filter(request) for name in self._parameters(request, item)}

    def _parameters(self, request: HttpRequest, item: Any) -> list[Any]:
        if callable(item):
            return cast("list[Any]", item(request, {}, self.model, self).expected_parameters())
        path, create = item if isinstance(item, list | tuple) else (item, FieldListFilter.create)
        field = get_fields_from_path(self.model, path)[-1]
        return cast("list[Any]", create(field, request, {}, self.model, self, field_path=path).expected_parameters())


class ReadOnlyAdmin(DeclaredFilters):
    """A list and a page for each row, without any change."""

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
