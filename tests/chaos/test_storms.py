"""Kills while the database goes away and comes back: recovery may not take live work, nor wait for ever."""

import functools

import pytest

from tests import outages
from tests.chaos.drill import Plan
from tests.chaos.runs import STORMS, assert_nothing_was_lost, fresh_seed, run

OUTAGES = [
    outages.restart,
    outages.crash_one_backend,
    outages.terminate_every_backend,
    outages.time_out_statements,
    functools.partial(outages.read_only, seconds=1.5),
]


@pytest.fixture
def database(breakable_database):
    return breakable_database


@pytest.mark.chaos
@pytest.mark.parametrize("number", STORMS)
def test_thirty_kills_and_ten_outages(breakable_server, database, ledger, duties, start_worker, report, number):
    """Who is killed around a restart is missed by no presence: the lease convicts, so it is short here."""
    plan = Plan(seed=fresh_seed(), tasks=3000, kills=30, outages=10)

    def disturb(chance):
        chance.choice(OUTAGES)(breakable_server, database)

    summary = run(plan, database, ledger, duties, start_worker, disturb=disturb, ROWLOCK_LEASE_SECONDS=5)
    report.note("storms", database, summary)
    assert_nothing_was_lost(plan, summary)
