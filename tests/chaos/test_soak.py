"""What a soak looks for in an hour, in seconds: some thousand tasks leave no memory, session, file or lock behind."""

import json

import psutil
import pytest

from tests.benchmarks.pages.tabs import postmaster_of
from tests.chaos import soak_report
from tests.chaos.probe import Probe, Sample
from tests.chaos.soak import Plan, Soak, forgotten_transaction, mixture
from tests.waiting import wait_until

WARM_UP, LOAD = 1000, 3000
# Between the end of the warm-up and that of three times as many tasks: of each process of the workers, and of what the
# database's sessions have for themselves, which keep plans and catalogue entries as they come.
MOST_GROWTH, MOST_GROWTH_OF_SESSIONS = 1.05, 1.5


@pytest.fixture
def probe(database):
    return Probe(database, psutil.Process(postmaster_of(database.url)))


def test_what_thousands_of_tasks_leave_behind_beside_an_open_transaction(probe, database, start_worker):
    probe.workers.append(start_worker("--concurrency", 2))
    enqueue(database, WARM_UP)

    def both_have_asked_the_database_something() -> bool:
        enqueue(database, 100)
        database.wait_until_finished(seconds=120)
        return probe.sample(0, "before", WARM_UP).sessions["rowlock:worker"] == 4

    wait_until(both_have_asked_the_database_something)
    wait_until(lambda: len(probe.left_over()) == 1 and sum(probe.left_over().values()) >= 3)  # both have nothing to do
    before = probe.sample(0, "before", WARM_UP)
    with forgotten_transaction(database.url):
        enqueue(database, LOAD)
        database.wait_until_finished(seconds=120)

    def nothing_is_left() -> bool:
        after = probe.sample(1, "after", WARM_UP + LOAD)
        return held(after) == held(before)

    wait_until(nothing_is_left)
    after = probe.sample(2, "after", WARM_UP + LOAD)
    assert after.pids == before.pids
    growth = {name: after.memory[name] / size for name, size in before.memory.items()}
    assert growth.pop("database sessions") < MOST_GROWTH_OF_SESSIONS
    assert max(growth.values()) < MOST_GROWTH, growth


def enqueue(database, number: int) -> None:
    for start in range(0, number, 100):
        for kind, count, key in mixture(start, 100):
            database.enqueue(kind, count=count, ordering_key=key, max_attempts=1)


def held(sample: Sample) -> tuple[object, ...]:
    """What is counted of a moment in which nobody works."""
    return sample.sessions, sample.left_over, sample.files


def test_a_soak_of_seconds_gives_every_figure(probe, database, start_worker, tmp_path):
    plan = Plan(seconds=3, rate=100, sample_seconds=0.1, prune_seconds=0)
    samples = Soak(plan, database, lambda: start_worker("--concurrency", plan.children), probe).run()
    assert {sample.phase for sample in samples} == {"before", "held", "after", "drained"}
    assert samples[-1].done == samples[-1].enqueued + 1
    assert "psql:" in {kind for sample in samples for kind in sample.sessions if sample.phase == "held"}
    (tmp_path / "reliability.md").write_text("<!-- soak: begin -->\n<!-- soak: end -->\n")
    soak_report.keep(tmp_path, soak_report.surroundings("18"), samples, {"tasks": [0.1]})
    assert json.loads((tmp_path / "measurements" / "soak.json").read_text())["ended"] == samples[-1].done
    assert "| ended a second |" in (tmp_path / "reliability.md").read_text()
