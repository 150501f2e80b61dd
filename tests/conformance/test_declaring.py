"""Declaring tasks and varying them for one call."""

import copy
import pickle
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from tasks.compat import TASKS_IN_DJANGO, InvalidTask, Task
from tasks.framework.decorator import task
from tests.conformance import tasks

nothing = tasks.nothing.func


def test_the_bare_decorator_and_the_called_one_make_the_same_task(any_backend):
    bare, called = task(nothing), task()(nothing)
    assert isinstance(bare, Task)
    assert bare == called
    assert (bare.func, bare.name) == (nothing, "nothing")
    assert bare.module_path == "tests.conformance.tasks.nothing"
    assert (bare.priority, bare.queue_name, bare.backend, bare.run_after) == (0, "default", "default", None)


def test_only_functions_of_a_module_can_be_tasks(any_backend):
    def local() -> None:
        """Nobody could import it."""

    for function in (local, any, any_backend.settings):
        with pytest.raises(InvalidTask, match="must be defined at a module level"):
            task(function)


def test_coroutines_can_be_tasks(any_backend):
    assert any_backend.kind.supports_async_task
    assert task(tasks.nothing_async.func).func is tasks.nothing_async.func


def test_the_context_must_be_the_first_argument(any_backend):
    takes_context = task(takes_context=True)
    assert takes_context(tasks.describe_context.func).takes_context
    for function in (nothing, tasks.answer.func):
        with pytest.raises(InvalidTask, match="does not have a first argument of 'context'"):
            takes_context(function)


@pytest.mark.parametrize("priority", [-100, 0, 100])
def test_priorities_in_range(any_backend, priority):
    assert task(priority=priority)(nothing).priority == priority


@pytest.mark.parametrize("priority", [-101, 101, 3.1])
def test_priorities_out_of_range(any_backend, priority):
    with pytest.raises(InvalidTask, match="priority must be a whole number between -100 and 100"):
        tasks.nothing.using(priority=priority)


def test_a_time_is_accepted_by_those_that_can_wait_and_refused_by_the_others(any_backend):
    later = timezone.now() + timedelta(hours=1)
    if any_backend.kind.supports_defer:
        assert tasks.nothing.using(run_after=later).run_after == later
    else:
        with pytest.raises(InvalidTask, match="does not support run_after"):
            tasks.nothing.using(run_after=later)


def test_a_time_without_zone_is_refused(deferring_backend):
    with pytest.raises(InvalidTask, match="run_after must be an aware datetime"):
        tasks.nothing.using(run_after=timezone.now().replace(tzinfo=None))


def test_a_time_cannot_be_declared(any_backend):
    with pytest.raises(TypeError):
        task(run_after=timezone.now())(nothing)


def test_a_queue_must_be_one_of_those_that_are_named(any_backend, settings):
    settings.TASKS = any_backend.settings(QUEUES=["default", "mail"])
    assert task(queue_name="mail")(nothing).queue_name == "mail"
    with pytest.raises(InvalidTask, match="Queue 'sums' is not valid for backend"):
        task(queue_name="sums")(nothing)


def test_a_backend_must_be_configured(any_backend):
    with pytest.raises(ImproperlyConfigured, match="elsewhere"):
        tasks.nothing.using(backend="elsewhere")


def test_using_gives_a_copy_and_leaves_the_task(any_backend):
    changed = tasks.nothing.using(priority=5).using(queue_name="mail")
    assert (changed.priority, changed.queue_name) == (5, "mail")
    assert (tasks.nothing.priority, tasks.nothing.queue_name) == (0, "default")
    assert tasks.nothing.using() == tasks.nothing
    assert tasks.nothing.using() is not tasks.nothing


@pytest.mark.parametrize("declared", [tasks.answer, tasks.answer_async])
def test_a_task_can_be_called_like_its_function(any_backend, declared):
    assert declared.call() == async_to_sync(declared.acall)() == 42


def test_a_task_can_be_copied(any_backend):
    assert copy.deepcopy(tasks.nothing) == tasks.nothing


if TASKS_IN_DJANGO:  # the backport's own tasks cannot be pickled

    def test_a_task_and_its_result_can_be_pickled(any_backend):
        assert pickle.loads(pickle.dumps(tasks.nothing)) == tasks.nothing
        result = tasks.nothing.enqueue()
        assert pickle.loads(pickle.dumps(result)) == result
