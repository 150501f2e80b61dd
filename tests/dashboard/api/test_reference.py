"""The OpenAPI document is valid, says what the API answers, and its page works without a script or another host."""

import json
import re

import jsonschema
import pytest
from django.test import Client
from openapi_spec_validator import validate

from dashboard.api.base import api
from dashboard.api.reference import grouped
from tests.dashboard.api.programs import Program
from tests.people import client_of

pytestmark = pytest.mark.django_db
DOCUMENT, PAGE = "/openapi.json", "/api/v1/docs/"


@pytest.fixture
def document():
    return Program("Viewers").read(DOCUMENT)


@pytest.fixture
def operations(document):
    return [operation for group in grouped(document, "https://ops.example").values() for operation in group]


def test_the_document_is_valid_and_describes_every_operation(document):
    validate(document)
    assert document["openapi"].startswith("3.1")
    found = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len(found) > 30
    assert [operation["operationId"] for operation in found if not operation.get("summary")] == []
    ids = [operation["operationId"] for operation in found]
    assert len(set(ids)) == len(ids)


def test_examples_fit_their_schemas(document, operations):
    for operation in operations:
        found = document["paths"][operation.path][operation.method.lower()]
        pairs = [
            (found.get("requestBody"), operation.request),
            (found["responses"].get(operation.status), operation.response),
        ]
        for described, example in pairs:
            if example:
                schema = described["content"]["application/json"]["schema"]
                jsonschema.validate(json.loads(example), {**schema, "components": document["components"]})


def test_the_page_has_every_operation_with_an_anchor_and_a_command(operations):
    page = client_of("Viewers").get(PAGE)
    assert page.status_code == 200
    for operation in operations:
        assert f'href="#{operation.id}"' in page.text
        assert f'id="{operation.id}"' in page.text
        assert f"{operation.method} {operation.path}" in page.text
    assert len(set(re.findall(r'id="([^"]+)"', page.text))) == len(re.findall(r'id="([^"]+)"', page.text))


def test_the_page_needs_nothing_from_elsewhere():
    page = client_of("Viewers").get(PAGE)
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert [address for address in loaded if "//" in address] == []
    assert "style=" not in page.text
    assert "<script>" not in page.text


def test_the_page_needs_a_login():
    assert Client().get(PAGE).status_code == 302


def test_the_document_is_made_once_for_all_who_ask():
    assert api.get_openapi_schema() is api.get_openapi_schema()
