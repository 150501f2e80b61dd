"""Fixtures for named locks: the backends, as parameters of tests that hold for all, and unused names."""

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
    """Each of the two backends in PostgreSQL."""
    return request.param


@pytest.fixture
def name() -> str:
    """An unused name of a lock."""
    return f"lock {next(numbers)}"
