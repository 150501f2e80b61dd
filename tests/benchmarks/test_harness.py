"""Each part of `make bench` still runs and gives figures: a tiny round without the peers, on one server."""

import importlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pytest

from tests.benchmarks import (
    database,
    drain,
    enqueue,
    growth,
    idle,
    limits,
    locks,
    mixed,
    reach,
    report,
    schedules,
    start,
    unique,
    waiting,
)
from tests.benchmarks.__main__ import PARTS
from tests.benchmarks.bench import Bench, Options, bench
from tests.benchmarks.peers.environment import Unfit
from tests.benchmarks.pipe import Counts

# A tick whose task began half a second late.
MADE = """
WITH task AS (
    INSERT INTO tasks_task (task_path, status, attempt, started_at, finished_at)
    SELECT 'a.b', 'COMPLETED', 1, at + interval '0.5 s', at + interval '1 s' FROM to_timestamp(%s) AS at
    RETURNING id, started_at - interval '0.5 s' AS at
)
INSERT INTO tasks_tick (schedule_name, at, outcome, task_id) SELECT 'bench 1', at, 'enqueued', id FROM task
"""
ONE_RAN = "DELETE FROM tasks_task WHERE id = (SELECT max(id) FROM tasks_task WHERE concurrency_key = 'held1')"
TINY = Options(rounds=1, tasks=20, seconds=0.3, finished=50, peers=[])


@pytest.fixture(scope="module")
def scene() -> Iterator[Bench]:
    settings = {}
    for name in PARTS:
        settings |= getattr(importlib.import_module(f"tests.benchmarks.{name}"), "SETTINGS", {})
    with bench(TINY, **settings) as scene:
        yield scene


@pytest.fixture(autouse=True)
def _few_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = growth.kinds
    monkeypatch.setattr(drain, "WORKERS", (1,))
    monkeypatch.setattr(database, "LOADS", [("update", 1), ("write", 1)])
    monkeypatch.setattr(waiting, "LOADS", [(5, 1)])
    monkeypatch.setattr(enqueue, "ENQUEUERS", (1,))
    monkeypatch.setattr(enqueue, "HOWS", {"bulk": "a thousand at a time"})
    monkeypatch.setattr(unique, "LOADS", unique.LOADS[:2])
    monkeypatch.setattr(unique, "HOWS", {"bulk": "a thousand at a time"})
    monkeypatch.setattr(limits, "WORKERS", (1,))
    monkeypatch.setattr(limits, "HELD_KEYS", 10)
    monkeypatch.setattr(schedules, "SUPERVISORS", (2,))
    monkeypatch.setattr(schedules, "AHEAD_SECONDS", 2)
    monkeypatch.setattr(schedules, "EVERY_MINUTE", (None, 1))
    monkeypatch.setattr(schedules, "PERIOD", 1.0)
    monkeypatch.setattr(growth, "kinds", lambda most: {growth.EMPTY: partial(fill_all, kinds(most).values())})
    monkeypatch.setattr(idle, "WORKERS", (2,))
    monkeypatch.setattr(idle, "SETTLED_SECONDS", 0.0)
    monkeypatch.setattr(locks, "KINDS", {locks.OURS: "lease"})
    monkeypatch.setattr(mixed, "LONG", 100)
    monkeypatch.setattr(reach, "CALLERS", 2)
    monkeypatch.setattr(reach, "alert_latency", lambda scene: {})  # an incident takes 8 s
    monkeypatch.setattr(start, "COMMANDS", {start.SHOWN: start.COMMANDS[start.SHOWN]})


def fill_all(fills: Iterable[Callable[[growth.Grown], None]], grown: growth.Grown) -> None:
    """The one that updates every row first."""
    for fill in reversed(list(fills)):
        fill(grown)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_runs_and_gives_figures(scene, name, tmp_path):
    part = importlib.import_module(f"tests.benchmarks.{name}").run(scene)
    cells = [cell for table in part.tables for row in table.rows for cell in row if isinstance(cell, int | float)]
    assert cells
    assert all(math.isfinite(cell) and cell >= 0 for cell in cells)
    assert not scene.excuses
    report.keep(tmp_path, part, report.surroundings(part.server, "make bench"), PARTS)
    assert json.loads((tmp_path / "measurements" / "benchmarks.json").read_text())[name]["tables"]
    for page in ("benchmarks.md", "measurements/benchmarks.txt"):
        assert f"## {part.title}" in (tmp_path / page).read_text()


def test_who_cannot_be_measured_is_left_out_with_the_reason(scene, monkeypatch):
    def refuse() -> float:
        raise Unfit("it has no hands")

    monkeypatch.setattr(scene, "excuses", {})
    figures = scene.alternate("counting", {"one": lambda: 1.0, "nobody": refuse, "two": lambda: 2.0}, rounds=2)
    assert figures == {"one": [1.0, 1.0], "two": [2.0, 2.0]}
    assert scene.excuses == {"nobody": "**nobody is left out**: it has no hands."}


def test_a_peer_that_keeps_no_key_unique_is_left_out(scene, monkeypatch):
    subject = scene.subjects()[0]
    monkeypatch.setattr(unique, "enqueued", lambda *_: subject.execute("TRUNCATE tasks_task CASCADE") or 1.0)
    with pytest.raises(Unfit, match="0 tasks had the one key"):
        unique.called(subject, "same", 1, 0.1)


def test_a_drain_in_which_held_back_tasks_ran_does_not_count(scene, monkeypatch):
    monkeypatch.setenv("BENCH_HELD", "20")
    scene.subjects()
    ours = limits.Limited(scene)

    def drained(*_: object, **__: object) -> float:
        ours.fill("held", 20)
        ours.execute(ONE_RAN)
        return 1.0

    monkeypatch.setattr(limits, "drained", drained)
    with pytest.raises(Unfit, match="1 tasks ran that a limit holds back"):
        limits.limited(ours, "held", 20, 1, "held")


def test_ticks_that_are_missing_or_doubled_are_counted(scene):
    ours = scene.subjects()[0]
    ours.execute(schedules.EMPTY)
    began = schedules.add(ours, "noop", None, 1, ahead=0)
    for second in (0, 2):
        ours.execute(MADE, began + second)
    ours.execute("INSERT INTO tasks_task (task_path) VALUES ('nobody.enqueued')")
    with schedules.connected(ours) as session:
        assert schedules.counted(session, began, 3) == ([pytest.approx(0.5), pytest.approx(0.5)], 1, 1)


def test_a_rate_is_that_of_the_time_in_which_all_were_at_work():
    counts = Counts()
    for at in range(11):  # ten a second, from 0 to 10 s
        counts.add("1", str(1 + 10 * at), str(at))
    for at in range(1, 12):  # as many, a second later
        counts.add("2", str(1 + 10 * at), str(at))
    assert counts.rate() == pytest.approx(20)


def test_a_short_task_is_passed_over_only_while_a_worker_is_free():
    long = [mixed.Ran(mixed.LONG, 0.0, 0.0, 2.0) for _ in range(mixed.SLOTS - 1)]
    busy = mixed.Ran(mixed.LONG, 0.0, 0.0, 1.0)
    waited = mixed.Ran(mixed.SHORT, 0.5, 1.25, 1.3)
    assert mixed.passed_over([*long, busy, waited]) == [pytest.approx(0.25)]


def test_a_run_replaces_its_own_parts_and_keeps_the_others(tmp_path):
    for name, title in [("two", "Second"), ("one", "First"), ("one", "First again")]:
        report.keep(tmp_path, report.Part(name, title), report.surroundings("", "make bench"), ["one", "two"])
    text = (tmp_path / "benchmarks.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## First again", "## Second"]


def test_a_wait_for_a_lock_counts_from_the_first_release_meanwhile():
    first = locks.Held("0", asked=0.0, began=0.0, ended=1.0)
    again = locks.Held("0", asked=1.0, began=1.0, ended=2.0)
    waiting = locks.Held("1", asked=0.5, began=2.25, ended=3.0)
    assert locks.waited([first, again, waiting]) == [1.25]


def test_the_page_sets_us_beside_the_best_rival_and_not_beside_bare_rows():
    rates = report.rates(
        "drain", "tasks a second", {"Rowlock": [30.0], "pgbench, batch 100": [90.0], "PgQueuer": [20.0]}
    )
    waits = report.waits("pickup", {"Rowlock": [0.002, 0.004], "PgQueuer": [0.001, 0.003], "pg-boss": [0.009]})
    assert report.compared(vars(rates)) == ["drain", "30.00", "PgQueuer 20.00", "1.50"]
    variants = report.rates(
        "drain", "tasks a second", {"Rowlock": [30.0], "Rowlock, relaxed": [40.0], "PgQueuer": [20.0]}
    )
    assert report.compared(vars(variants))[1] == "30.00", "a variant does not stand for the part's own settings"
    assert report.compared(vars(waits)) == ["pickup", "4.00 / 4.00 ms", "PgQueuer 3.00 / 3.00 ms", "1.33"]
    assert report.compared(vars(report.Table("one alone", ["", "median"]))) is None
