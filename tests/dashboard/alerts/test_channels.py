"""Channels: their address is encrypted, by the secret key or one of its fallbacks."""

import pytest
from django.db import IntegrityError

from dashboard.models import AlertChannel, Incident
from dashboard.secrets import AddressLocked

ADDRESS = "https://hooks.example/T0/pa55"


def channel(**fields) -> AlertChannel:
    made = AlertChannel(name="ops", **fields)
    made.set_address(ADDRESS)
    made.save()
    return AlertChannel.objects.get()


@pytest.mark.django_db
def test_an_address_is_stored_encrypted_and_survives_a_rotation(settings):
    settings.SECRET_KEY = "first"
    kept = channel()
    assert "pa55" not in kept.sealed_address
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "second", ["first"]
    assert kept.address == ADDRESS
    settings.SECRET_KEY_FALLBACKS = []
    with pytest.raises(AddressLocked):
        _ = kept.address


@pytest.mark.django_db
def test_the_database_refuses_an_address_in_plain():
    with pytest.raises(IntegrityError, match="dashboard_alertchannel_sealed"):
        AlertChannel.objects.create(name="ops", sealed_address=ADDRESS)


@pytest.mark.django_db
def test_a_line_has_one_open_incident():
    fields = {"line": "stale:mail", "kind": "stale", "severity": 1, "title": "Stale", "size": 1}
    Incident.objects.create(**fields)
    with pytest.raises(IntegrityError, match="dashboard_incident_one_open"):
        Incident.objects.create(**fields)
