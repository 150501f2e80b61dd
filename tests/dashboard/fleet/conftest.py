"""A server that plays installations, and a fleet of them."""

from collections.abc import Callable, Iterator

import pytest

from dashboard.fleet import look
from dashboard.live import snapshots
from tests.dashboard.fleet.afar import Server, serving, setting


@pytest.fixture(scope="session")
def _server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def afar(_server: Server) -> Server:
    _server.asked.clear()
    _server.is_slow.clear()
    look.forget_all_but(set())
    snapshots.forget()
    return _server


@pytest.fixture
def fleet(afar: Server, settings) -> Callable[..., None]:
    """Configure installations of these kinds, named after them; further ones by their addresses."""

    def configure(*kinds: str, **urls: str) -> None:
        places = {kind: f"{afar.url}/{kind}" for kind in kinds}
        settings.ROWLOCK = {**settings.ROWLOCK, "FLEET": setting(**places, **urls)}

    return configure
