"""Where rows could not be locked one by one it says so, why, and what to do instead."""

import os
import subprocess
import sys

import pytest
from django.conf import settings
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import FieldError
from django.db import NotSupportedError, connection, transaction
from django.db.models import Count, F
from django.http import HttpResponse
from django.urls import path

from orders.models import Order
from tasks.locking import double_checked
from tests.commands import database_url
from tests.orders import orders

pytestmark = pytest.mark.django_db(transaction=True)
ORDERS = Order.objects.filter(shipped_at__isnull=False)


def body(order):
    raise AssertionError("nothing may be handled")


@pytest.mark.parametrize(
    ("queryset", "why"),
    [
        (ORDERS[:5], "it is sliced; give limit=… to each()"),
        (ORDERS.union(ORDERS), "it is a union"),
        (ORDERS.values("pk"), "it gives values"),
        (ORDERS.values_list("pk"), "it gives values"),
        (ORDERS.values(), "it gives values"),
        (ORDERS.annotate(doubled=F("pk") * 2).values("doubled"), "it gives values"),
        (ORDERS.dates("shipped_at", "day"), "it gives values"),
        (ORDERS.distinct(), "it is distinct"),
        (ORDERS.annotate(number=Count("pk")), "it is grouped"),
        (ORDERS.select_for_update(), "it locks its rows already"),
    ],
)
def test_a_queryset_whose_rows_cannot_be_locked(queryset, why):
    with pytest.raises(NotSupportedError, match=why.replace("(", r"\(").replace(")", r"\)")):
        double_checked(queryset)


def test_a_queryset_with_annotations_gives_model_instances():
    orders.shipped()
    annotated = ORDERS.annotate(doubled=F("pk") * 2).alias(tripled=F("pk") * 3).only("customer_email")
    assert double_checked(annotated).each(lambda order: None).done == 1


def test_something_that_is_no_queryset():
    with pytest.raises(TypeError, match="Pass a QuerySet"):
        double_checked(Order.objects)


def test_a_loop_over_it_would_leave_transactions_open():
    with pytest.raises(TypeError, match=r"Pass the loop's body instead"):
        list(double_checked(ORDERS))


def test_of_as_text_is_what_the_article_has_and_django_refuses():
    with pytest.raises(TypeError, match=r"of=\('self',\)"):
        double_checked(ORDERS).each(body, of="self")
    orders.shipped()
    with pytest.raises(FieldError), transaction.atomic():
        ORDERS.select_for_update(of="self").first()


def test_of_a_table_that_may_have_no_row():
    LogEntry.objects.create(user=User.objects.create_user("anna"), action_flag=ADDITION)
    entries = double_checked(LogEntry.objects.select_related("content_type"))
    with pytest.raises(NotSupportedError, match=r"nullable side of an outer join.*of=\('self',\)"):
        entries.each(body, of=("self", "content_type"))
    assert entries.each(lambda entry: None).done == 1


def test_an_unknown_table_in_of_is_no_failure_of_the_rows():
    orders.shipped(2)
    with pytest.raises(FieldError):
        double_checked(ORDERS).each(body, of=("customer",))
    assert not connection.in_atomic_block


class TestOpenTransaction:
    def test_inside_atomic(self):
        orders.shipped()
        with pytest.raises(RuntimeError, match=r"Move the call out of atomic\(\)"), transaction.atomic():
            double_checked(ORDERS).each(body)

    def test_with_autocommit_off(self):
        transaction.set_autocommit(False)
        try:
            with pytest.raises(RuntimeError, match="Autocommit is off"):
                double_checked(ORDERS).each(body)
        finally:
            transaction.set_autocommit(True)

    def test_in_a_view_it_names_atomic_requests(self, client, settings, monkeypatch):
        settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, []
        assert client.get("/run/").status_code == 200
        monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
        with pytest.raises(RuntimeError, match=r"ATOMIC_REQUESTS opened it.*non_atomic_requests"):
            client.get("/run/")
        assert client.get("/run-apart/").status_code == 200

    @pytest.mark.django_db(transaction=False)
    def test_the_transaction_of_a_test_case_is_spared(self):
        orders.shipped()
        assert connection.in_atomic_block
        assert double_checked(ORDERS).each(lambda order: None).done == 1
        with pytest.raises(RuntimeError, match="inside a transaction"), transaction.atomic():
            double_checked(ORDERS).each(body)


def view(request):
    double_checked(ORDERS).each(body)
    return HttpResponse()


@transaction.non_atomic_requests
def view_apart(request):
    return view(request)


urlpatterns = [path("run/", view), path("run-apart/", view_apart)]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_an_isolation_level_at_which_the_second_look_sees_what_the_first_saw(level):
    orders.shipped()
    with connection.cursor() as cursor:
        cursor.execute(f"SET default_transaction_isolation = '{level}'")
        try:
            with pytest.raises(NotSupportedError, match=f"runs at {level.upper()}"):
                double_checked(ORDERS).each(body)
        finally:
            cursor.execute("RESET default_transaction_isolation")


def test_the_isolation_level_is_asked_once_in_a_run():
    orders.shipped(3)
    outer, isolation, inner = 1, 1, 3
    assert double_checked(ORDERS).each(lambda order: None).queries == outer + isolation + inner


STRANGER = """
import django, environ
from django.conf import settings
settings.configure(INSTALLED_APPS=["django.contrib.contenttypes"], DATABASES={"default": environ.Env().db()})
django.setup()
from django.contrib.contenttypes.models import ContentType
from tasks.locking import double_checked
print(double_checked(ContentType.objects.all()).each(lambda row: None).done)
"""


def test_it_needs_neither_our_worker_nor_our_tables():
    environment = {**os.environ, "DATABASE_URL": database_url(), "PYTHONPATH": str(settings.BASE_DIR)}
    output = subprocess.check_output([sys.executable, "-c", STRANGER], env=environment, text=True)
    assert int(output) == ContentType.objects.count() > 0
