"""What a new process asks the database before its own first question."""

import pytest
from django.apps import apps
from django.contrib.postgres.signals import get_citext_oids, get_hstore_oids
from django.db import connection


@pytest.mark.django_db
def test_no_session_looks_for_types_that_no_model_has():
    """Those looks remember what they found."""
    assert apps.is_installed("django.contrib.postgres")
    connection.ensure_connection()
    assert (get_hstore_oids.cache_info().misses, get_citext_oids.cache_info().misses) == (0, 0)
