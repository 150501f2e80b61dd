"""Where the processes of a run come from: what is heard of one that fails, and that all end with their mother."""

import psutil
import pytest
from django.db import connection

from dashboard.lab import spawning
from dashboard.lab.plan import Plan
from dashboard.lab.runner import DATABASE
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def crew():
    with spawning.opened() as opened:
        yield opened


def at_the_line(crew: spawning.Nursery) -> spawning.Hand:
    """A process that is connected and waits for its start."""
    database = {key: connection.settings_dict[key] for key in DATABASE}
    job = {"database": database, "schema": "lab_none", "number": 0, "role": "worker", "limits": ""}
    hand = crew.start({**job, "plan": Plan("unsafe").as_dict()})
    hand.wait_until_ready()
    return hand


def test_what_one_said_that_failed_is_heard(crew):
    hand = crew.start({})
    assert hand.wait(60) == 1
    assert hand.last_words() == "KeyError: 'schema'"
    hand.close()


def test_one_is_killed_and_the_others_stay(crew):
    hands = [at_the_line(crew) for _ in range(2)]
    hands[0].kill()
    assert [hand.poll() for hand in hands] == [-9, None]
    hands[0].tell("go")  # it hears nothing, which is no error
    hands[0].close()
    hands[1].close()
    assert hands[1].poll() == -9


def test_all_end_with_their_mother_and_the_next_run_gets_another(crew):
    hand = at_the_line(crew)
    child = psutil.Process(hand.pid)
    child.parent().kill()
    wait_until(lambda: hand.poll() == -9, seconds=30)
    wait_until(lambda: not child.is_running(), seconds=30)
    hand.close()
    another = at_the_line(crew)
    assert another.poll() is None
    another.close()
