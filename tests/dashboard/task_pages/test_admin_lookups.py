"""The address of a list takes declared filters and exact ids: no other lookup reaches the database."""

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db import connection, models
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from orders.models import Account, Order
from tasks.admin import LockAwareAdmin
from tasks.admin.read_only import DeclaredFilters
from tasks.models import Attempt, Worker
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db
NEEDLE = "(a.*){9}b"
DEAR = ("regex", "iregex", "contains", "icontains", "istartswith", "endswith", "year", "week_day", "gt", "in", "isnull")
ADMINS = {
    model._meta.label: admin.site.get_model_admin(model)
    for model in apps.get_models()
    if admin.site.is_registered(model)
}
OWN_LISTS = {"tasks.Task", "tasks.Queue"}  # which read no parameter but their own


def address(model: type[models.Model], query: str = "") -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist") + query


@pytest.mark.parametrize("label", ADMINS)
def test_no_lookup_that_was_not_declared_reaches_the_database(label: str) -> None:
    model, client = ADMINS[label].model, client_of(is_superuser=True)
    texts = [field.name for field in model._meta.concrete_fields if not isinstance(field, models.ForeignKey)]
    lookups = [f"{name}__regex" for name in texts] + [f"{texts[-1]}__{lookup}" for lookup in DEAR]
    for lookup in lookups:
        with CaptureQueriesContext(connection) as asked:
            answer = client.get(address(model, f"?{lookup}={NEEDLE}"))
        assert not [query for query in asked.captured_queries if NEEDLE in query["sql"]], lookup
        assert answer.status_code == (200 if label in OWN_LISTS else 400), lookup


@pytest.mark.parametrize(
    "query",
    [
        "?traceback__regex=x",
        "?task__kwargs__token__startswith=a",
        "?task__task_path__regex=x",
        "?finished_at__year=999999999",
        "?finished_at__gte=2026-01-01",
        "?worker_id=w7f",
        "?id__gt=1",
        "?task__id__exact=%00",
        "?nonsense=1",
    ],
)
def test_a_viewer_gets_400_for_what_no_list_offers(query: str) -> None:
    assert client_of("Viewers").get(address(Attempt, query)).status_code == 400


def test_exact_ids_choose_rows() -> None:
    here, there = rows.failed(), rows.failed()
    attempt = Attempt.objects.create(task=here, number=1, worker_id="w", outcome="failed")
    Attempt.objects.create(task=there, number=1, worker_id="w", outcome="failed")
    client = client_of("Viewers")
    of_task = [f"{name}={here.pk}" for name in ("task", "task_id", "task__exact", "task__id", "task__id__exact")]
    for query in [*of_task, f"pk={attempt.pk}", f"id={attempt.pk}", f"id__exact={attempt.pk}"]:
        page = client.get(address(Attempt, f"?{query}"))
        assert [row.pk for row in page.context["cl"].result_list] == [attempt.pk], query
    for query in ("id=99999999999999999999", "id=x", "task=-1"):
        assert client.get(address(Attempt, f"?{query}")).status_code in (200, 302), query


def test_declared_filters_choose_rows() -> None:
    Worker.objects.create(id="w7f", hostname="host", pid=1)
    Order.objects.create(customer_email="a@customer.test")
    client = client_of(is_superuser=True)
    for model, query, number in [
        (Order, "?email_state__exact=none", 1),
        (Order, "?email_state__exact=sent", 0),
        (Worker, "?id__exact=w7f", 1),
        (Worker, "?q=w7f", 1),
        (User, "?is_superuser__exact=1", 1),
        (User, "?is_superuser__exact=0", 0),
        (User, f"?groups__id__exact={Group.objects.get(name='Viewers').pk}", 0),
    ]:
        page = client.get(address(model, query))
        assert (page.status_code, page.context["cl"].result_count) == (200, number), query
    owner = User.objects.get()
    Account.objects.create(owner=owner)
    assert client.get(address(Account, f"?owner__id__exact={owner.pk}")).context["cl"].result_count == 1
    assert client.get(address(Order, "?email_state__exact=%00")).status_code == 400


class Shipped(admin.SimpleListFilter):
    title = parameter_name = "shipped"

    def lookups(self, request, model_admin):
        return [("yes", "yes")]

    def queryset(self, request, queryset):
        return queryset


def test_an_adopters_own_filters_are_declared_too(rf) -> None:
    class ShopAdmin(LockAwareAdmin):
        list_filter = (Shipped, "placed_at", ("email_state", admin.AllValuesFieldListFilter))
        date_hierarchy = "placed_at"

    shop, request = ShopAdmin(Order, admin.site), rf.get("/")
    taken = ["shipped", "placed_at__gte", "placed_at__lt", "email_state", "placed_at__year", "placed_at__day"]
    assert [name for name in taken if not shop.lookup_allowed(name, "1", request)] == []
    refused = ["shipped__regex", "placed_at__regex", "email_state__regex", "email_state__gt", "shipped_at__year"]
    assert [name for name in refused if shop.lookup_allowed(name, "1", request)] == []


def test_every_list_of_the_stock_admin_has_the_one_guard() -> None:
    assert {label for label, each in ADMINS.items() if not isinstance(each, DeclaredFilters)} == set()
