"""Addresses of pages are looked up once for each name, arguments, prefix and site."""

import pytest
from django.test import override_settings
from django.urls import NoReverseMatch, set_script_prefix

from tasks.support import addresses
from tasks.support.addresses import address

urlpatterns: list = []


def test_an_address_is_looked_up_once():
    addresses._found.cache_clear()
    found = [address("admin:tasks_task_change", number) for number in (7, 8, 7)]
    assert found == ["/admin/tasks/task/7/", "/admin/tasks/task/8/", "/admin/tasks/task/7/"]
    assert addresses._found.cache_info().misses == 2


def test_an_address_below_another_prefix_or_of_another_site_is_another():
    assert address("admin:index") == "/admin/"
    set_script_prefix("/ops/")
    try:
        assert address("admin:index") == "/ops/admin/"
    finally:
        set_script_prefix("/")
    with override_settings(ROOT_URLCONF="tests.tasks.support.test_addresses"), pytest.raises(NoReverseMatch):
        address("admin:index")


def test_a_page_that_is_not_there_is_an_error():
    with pytest.raises(NoReverseMatch):
        address("admin:nowhere")
