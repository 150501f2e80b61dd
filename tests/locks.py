"""Fixtures of named locks: their backends, each a parameter of the tests that hold for all of them, and fresh names."""

import itertools

import pytest

numbers = itertools.count(1)


@pytest.fixture(params=["lease", "advisory", "redis"])
def backend(request: pytest.FixtureRequest, transactional_db: None) -> str:
    """Each backend in turn."""
    if request.param == "redis":
        request.getfixturevalue("redis_url")
    return request.param


@pytest.fixture(params=["lease", "advisory"])
def postgres_backend(request: pytest.FixtureRequest, transactional_db: None) -> str:
    """Each of the two that are kept in PostgreSQL."""
    return request.param


@pytest.fixture
def name() -> str:
    """The name of a lock that nobody has used."""
    return f"lock {next(numbers)}"
