"""The demo's tasks: loaded once, in queues of their own, harmless."""

import pytest

from dashboard import demo, tasks
from tasks.models import Queue, Task

pytestmark = pytest.mark.django_db


def test_it_is_loaded_once_whatever_becomes_of_its_tasks():
    assert demo.load_once() == Task.objects.count() > 30
    Task.objects.all().delete()
    assert demo.load_once() == 0


def test_it_keeps_to_queues_of_its_own():
    demo.load_once()
    queues = {*Task.objects.values_list("queue_name", flat=True), *Queue.objects.values_list("name", flat=True)}
    assert queues == {"demo-mail", "demo-reports"}


@pytest.mark.parametrize(("below", "primes"), [(-5, 0), (0, 0), (1, 0), (2, 0), (3, 1), (1000, 168), (10**9, 9592)])
def test_its_arithmetic_is_right_and_bounded(below, primes):
    assert tasks.count_primes.func(below) == primes
