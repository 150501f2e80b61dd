"""A form that is sent twice: the token tells a double click from everything else."""

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tasks.models import SubmittedForm
from tasks.operations import tokens
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db
TOKEN = "a token of one form"
LOOKED = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%is_recent%'
"""


def never() -> str:
    raise AssertionError("it was done twice")


def another_looked() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(LOOKED)
        return cursor.fetchone()[0] > 0


def test_the_second_click_gets_the_target_of_the_first():
    assert tokens.once_within_seconds(TOKEN, lambda: "first") == "first"
    assert tokens.once_within_seconds(TOKEN, never) == "first"


@pytest.mark.django_db(transaction=True)
def test_the_second_click_waits_for_the_first():
    answers = []

    def click_again() -> None:
        try:
            answers.append(tokens.once_within_seconds(TOKEN, never))
        finally:
            connection.close()

    second = threading.Thread(target=click_again)

    def work() -> str:
        second.start()
        wait_until(another_looked)
        return "first"

    tokens.once_within_seconds(TOKEN, work)
    second.join(10)
    assert answers == ["first"]


def test_a_form_that_was_sent_earlier_is_no_double_click():
    tokens.once_within_seconds(TOKEN, lambda: "first")
    SubmittedForm.objects.update(at=timezone.now() - timedelta(seconds=tokens.DOUBLE_CLICK_SECONDS + 1))
    assert tokens.once_within_seconds(TOKEN, never) is None


def test_a_form_whose_server_died_is_no_double_click_for_ever():
    SubmittedForm.objects.create(token=TOKEN, at=timezone.now() - timedelta(seconds=tokens.DOUBLE_CLICK_SECONDS - 0.2))
    assert tokens.once_within_seconds(TOKEN, never) is None


def test_a_form_that_failed_may_be_sent_again():
    with pytest.raises(ZeroDivisionError):
        tokens.once_within_seconds(TOKEN, lambda: str(1 / 0))
    assert tokens.once_within_seconds(TOKEN, lambda: "second") == "second"


def test_a_form_that_did_nothing_may_be_sent_again():
    assert tokens.once_within_seconds(TOKEN, lambda: "") == ""
    assert tokens.once_within_seconds(TOKEN, lambda: "second") == "second"
