"""Sessions that fall silent for ever, without an error and without an end, while new ones are well."""

import pytest

from tasks.worker.session import ANSWER_SECONDS
from tests.relay import relay
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until


@pytest.mark.chaos
def test_sessions_that_stay_silent_while_new_ones_are_well_are_given_up(database, ledger, start_worker):
    """The supervisor renews the lease on a new one, so nobody takes over: the child itself finds it out."""
    with relay(database.url) as way:
        worker = start_worker(DIRECT_DATABASE_URL=way.url)
        task_ids = database.enqueue(handlers.work, 0.5, count=5)
        wait_until(ledger.count)
        [child] = worker.children()
        way.silence()
        way.speak()
        worker.wait_until_it_says("silent for 6 s")
        worker.wait_until_it_says(f"silent for {ANSWER_SECONDS:g} s", seconds=3 * ANSWER_SECONDS)
        assert database.wait_until_finished() == {"COMPLETED": 5}
        assert [effect.task_id for effect in ledger.effects()] == task_ids
        assert worker.children() == [child]
        assert worker.stop() == 0
