"""The whole life of tasks against a model, step by random step (tests/tasks/life.py says which, and what must hold)."""

import logging
from collections.abc import Iterator

import pytest
from django.db import connection
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tasks.queue import presence
from tests.sessions import session
from tests.tasks.life import Life
from tests.tasks.life_tables import HISTORY

pytestmark = pytest.mark.django_db
ALWAYS_THE_SAME = settings(
    max_examples=60,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    database=None,
    suppress_health_check=list(HealthCheck),
)
BY_CHANCE = settings(ALWAYS_THE_SAME, derandomize=False, max_examples=600, stateful_step_count=80, print_blob=True)


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Life]]:
    monkeypatch.setattr(presence, "SECOND_LOOK_SECONDS", 0.0)
    logging.disable(logging.WARNING)  # a line for every death and every refusal
    with connection.cursor() as cursor, session("rowlock:test", autocommit=True, options="") as crew:
        cursor.execute(HISTORY)
        Life.crew = crew
        yield Life
    logging.disable(logging.NOTSET)


def test_any_order_of_steps_leaves_what_the_model_says(life):
    run_state_machine_as_test(life, settings=ALWAYS_THE_SAME)


@pytest.mark.chaos
def test_so_do_five_hundred_longer_lives(life):
    run_state_machine_as_test(life, settings=BY_CHANCE)
