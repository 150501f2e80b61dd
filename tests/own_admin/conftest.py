"""Fresh projects for every combination: made, migrated and tried in the background, while the first are asked about."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import databases
from tests.browser.conftest import browser  # noqa: F401  # the fixture, with this package as its scope
from tests.databases import QueueDatabase
from tests.own_admin import combinations
from tests.own_admin.combinations import Combination
from tests.own_admin.projects import Project
from tests.own_admin.servers import server_of
from tests.wheel import environment

AT_ONCE = 2  # each waits for one process at a time, and the machine has few processors


def environment_of(one: Combination, run_folder: Path, wheel: Path) -> Path:
    """The environment of this Django and Python, made once a run."""
    folder = run_folder / f"django{one.django}-python{one.python}"
    return environment(folder, wheel, combinations.python(one.python), one.django)


@dataclass
class Workshop:
    """Makes projects in threads that live as long as what they start, which ends with them."""

    folder: Path
    run_folder: Path
    wheel: Path
    pool: ThreadPoolExecutor
    exits: contextlib.ExitStack
    servers: dict[str, Future[str]]

    def server(self, name: str) -> str:
        installed = combinations.installation(name)
        assert installed, f"no PostgreSQL {name} is here"
        return self.exits.enter_context(server_of(installed)).url

    def project(self, one: Combination, name: str, admin: str = "/admin/") -> Project:
        """A project that is not yet created, with a database of its own."""
        url = databases.named(self.servers[one.postgres].result(), name)
        databases.create(url)
        database = QueueDatabase(url)
        self.exits.callback(database.close)
        project = Project(self.folder / name, environment_of(one, self.run_folder, self.wheel), database, admin)
        self.exits.callback(project.exits.close)
        return project


@pytest.fixture(scope="package")
def workshop(run_folder: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with contextlib.ExitStack() as exits, ThreadPoolExecutor(AT_ONCE) as pool:
        made = Workshop(tmp_path_factory.mktemp("projects"), run_folder, wheel, pool, exits, {})
        names = {one.postgres for one in combinations.here()}
        made.servers |= {name: pool.submit(made.server, name) for name in sorted(names)}
        yield made
        pool.shutdown(wait=False, cancel_futures=True)
        exits.close()  # before the threads, whose end would kill the servers
