"""`run_pattern`: its numbers as JSON, its refusals, and what it says of several runs."""

import dataclasses
import re

import pytest

from dashboard.lab.patterns import BUILT_IN, PATTERNS
from dashboard.management.commands.run_pattern import report_of
from tasks.commands.output import render
from tests import commands
from tests.dashboard.lab.cases import result
from tests.tasks.commands.terminal import shown

pytestmark = pytest.mark.django_db(transaction=True)
KEYS = {
    "pattern", "items", "processed", "duplicates", "lost_updates", "lost_work", "lost_races", "order_inversions",
    "seconds", "items_per_second", "wait_ms_p50", "wait_ms_p95", "queries_per_item",
}  # fmt: skip
CONTRACT = {
    "unsafe", "double_checked", "double_checked_nowait", "skip_locked_held", "skip_locked_claim", "optimistic_claim",
    "optimistic_complete", "optimistic_claim_as_printed", "double_checked_batched", "idempotent_update", "cache_lock",
    "cache_lock_naive", "advisory_lock", "account_unsafe", "account_pessimistic", "account_optimistic",
    "slots_by_index", "slots_by_counter", "slots_by_advisory_lock",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _allowed(settings):
    settings.ROWLOCK_LAB = True


def test_every_pattern_of_the_contract_is_there():
    assert CONTRACT == {pattern.name for pattern in BUILT_IN} <= set(PATTERNS)


def test_one_run_gives_its_numbers_and_what_keeps_its_locks():
    outcome = commands.run("run_pattern", "cache_lock", "--workers", 1, "--items", 4, "--work-ms", 0, "--json")
    assert outcome.status == 0, outcome.stderr
    assert outcome.data.keys() >= KEYS
    assert (outcome.data["pattern"], outcome.data["items"], outcome.data["processed"]) == ("cache_lock", 4, 4)
    assert "in PostgreSQL, which all processes share" in outcome.data["runs_on"]["cache_lock"]


def test_a_sweep_varies_one_number():
    argv = ["account_pessimistic", "--sweep", "items=4,5", "--workers", 1, "--work-ms", 0, "--json"]
    data = commands.run("run_pattern", *argv).data
    assert [(run["items"], run["processed"]) for run in data["runs"]] == [(4, 4), (5, 5)]
    assert "runs_on" not in data


def test_of_several_runs_it_tells_which_one_is_under_way():
    argv = ["account_pessimistic", "--sweep", "items=4,5", "--workers", 1, "--work-ms", 0]
    text = shown("run_pattern", *argv, ROWLOCK_LAB="1").text
    assert text.index("1 of 2, account_pessimistic: 0 of 4 done") < text.index("2 of 2, account_pessimistic: 0 of 5")
    assert "of 1, " not in shown("run_pattern", "account_pessimistic", "--items", 4, ROWLOCK_LAB="1").text


def test_what_lacks_a_guard_stands_above_the_same_with_it():
    guarded = dataclasses.asdict(result("optimistic_claim_as_printed", lost_races=13)) | {"is_clean": True}
    lacking = result("optimistic_claim_as_printed", duplicates=15, guarded=guarded)
    heading, first, second = render(report_of([lacking])).splitlines()
    assert heading.startswith("PATTERN")
    assert first.split()[:3] == ["optimistic_claim_as_printed", "100", "15"]
    assert first.endswith("UNSAFE")
    assert second.startswith("optimistic_claim_as_printed with the version trigger")
    assert second.split()[5:7] == ["100", "0"]
    assert "UNSAFE" not in second


def test_the_table_has_columns_of_slots_if_a_pattern_keeps_a_limit():
    kept = result("slots_by_index", kills=1, slots=3, most_at_once=3, refill_ms=412)
    leaking = result("slots_by_counter", kills=2, slots=3, most_at_once=3, leaked_slots=2, refill_ms=None)
    heading, *lines = render(report_of([kept, leaking, result("unsafe")])).splitlines()
    assert re.search(r"MOST AT ONCE +LEAKED SLOTS +ALL IN USE AGAIN +VERDICT$", heading)
    assert [re.split(r" {2,}", line)[-4:] for line in lines] == [
        ["3 of 3", "0", "412 ms", "clean"],
        ["3 of 3", "2", "never", "UNSAFE"],
        ["-", "-", "-", "clean"],
    ]
    assert "SLOTS" not in render(report_of([result("unsafe")]))


def test_a_lock_without_redis_is_told_from_one_with_it(monkeypatch):
    told = render(report_of([result("cache_lock"), result("cache_lock_naive"), result("unsafe")]))
    assert "cache_lock runs on: A table of leases in PostgreSQL" in told
    assert "LocMemCache) cannot keep a lock: it is kept in one process" in told
    assert "cache_lock_naive runs on: A table of the run's own" in told
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:6379/0")
    assert "cache_lock runs on: Redis (REDIS_URL)" in render(report_of([result("cache_lock")]))


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "Name one PATTERN, or give --all"),
        (["unsafe", "--all"], "Name one PATTERN, or give --all"),
        (["no_such"], "invalid choice: 'no_such'"),
        (["unsafe", "--workers", "0"], "from 1 to 16"),
        (["unsafe", "--items", "1e3"], "from 1 to 20000"),
        (["unsafe", "--sweep", "colour=1"], "is not like workers=1,2,4"),
        (["unsafe", "--sweep", "workers=1,x"], "from 1 to 16"),
    ],
)
def test_bad_input_is_refused(argv, told):
    outcome = commands.run("run_pattern", *argv)
    assert outcome.status == 2
    assert told in outcome.stderr


def test_on_a_database_of_ones_own_it_must_be_asked_for(settings):
    settings.ROWLOCK_LAB = False
    outcome = commands.run("run_pattern", "unsafe")
    assert outcome.status == 1
    assert "ROWLOCK_LAB=1" in outcome.stderr
