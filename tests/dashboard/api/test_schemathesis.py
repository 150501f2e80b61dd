"""Requests that schemathesis makes from the OpenAPI document: no answer is a 500 or differs from the document."""

import os
import re
import secrets

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies
from schemathesis import GenerationMode

from dashboard.api import idempotency, throttle
from dashboard.wsgi import application
from tests.dashboard.api.callers import Caller
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)
EXAMPLES, DEEP_EXAMPLES = 4, 200
# 422: no schema can say which times, zones or patterns there are. 428: nor that an empty header is none.
EXPECTED = ["2xx", "401", "403", "404", "409", "412", "422", "428", "429"]
CONFIG = schemathesis.Config.from_dict({"checks": {"positive_data_acceptance": {"expected-statuses": EXPECTED}}})
KEY = re.compile(r"[!-~]{1,200}")


def findings(examples: int) -> list[str]:
    """The faults of every operation, each with the request that shows it."""
    rows.ready(id=1), rows.failed(id=2), rows.completed(id=3)
    headers = {"Authorization": f"Bearer {Caller(is_superuser=True).secret}"}
    schema = schemathesis.openapi.from_wsgi("/api/v1/openapi.json", application, config=CONFIG, headers=headers)
    found = []
    for result in schema.get_all_operations():
        operation = result.ok()
        modes = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategies.one_of(modes))
        def check(case: schemathesis.Case) -> None:
            call(case, headers)

        try:
            check()
        except BaseExceptionGroup as faults:
            found += [f"{operation.label}: {fault}" for fault in faults.exceptions]
    return found


def call(case: schemathesis.Case, headers: dict[str, str]) -> None:
    """Send the request with a key that no other had, unless a wrong one is its point."""
    throttle.requests.forget()
    throttle.failures.forget()
    if KEY.fullmatch(str((case.headers or {}).get(idempotency.HEADER, ""))):
        headers = {**headers, idempotency.HEADER: secrets.token_hex(16)}
    case.call_and_validate(headers=headers)


def test_schemathesis_finds_nothing():
    faults = findings(EXAMPLES)
    assert not faults, "\n\n".join(faults)


@pytest.mark.chaos
def test_schemathesis_finds_nothing_for_long():
    faults = findings(int(os.environ.get("SCHEMATHESIS_EXAMPLES", DEEP_EXAMPLES)))
    assert not faults, "\n\n".join(faults)
