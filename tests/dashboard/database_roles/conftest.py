"""The server of the roles, acting as each of them, and what it has refused."""

from collections.abc import Callable, Iterator

import pytest

from tests.dashboard.role_server import MONITOR, OWNER, WEB, WORKER, RoleServer, a_row_of_everything, role_server


@pytest.fixture(scope="module")
def site(django_db_blocker) -> Iterator[RoleServer]:
    with role_server() as site, django_db_blocker.unblock():
        with site.acting(OWNER):
            a_row_of_everything()
        yield site


@pytest.fixture
def web(site, settings) -> Iterator[None]:
    settings.ROWLOCK_LAB = False  # it makes schemas, which no role may
    with site.acting(WEB):
        yield


def acting_as(role: str) -> Callable[..., Iterator[None]]:
    @pytest.fixture
    def act(site) -> Iterator[None]:
        with site.acting(role):
            yield

    return act


worker, monitor = acting_as(WORKER), acting_as(MONITOR)


@pytest.fixture(autouse=True)
def nothing_was_refused(site, request) -> Iterator[None]:
    """Pages and workers carry on after some errors; the server's log tells of each right that was missing."""
    before = len(site.refusals())
    yield
    if "refused" not in request.node.name:
        assert site.refusals()[before:] == []
