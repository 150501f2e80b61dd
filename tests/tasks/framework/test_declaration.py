"""`@task`: every option is checked where it is written, and says what it may be."""

import pytest

from tasks.compat import InvalidTask
from tasks.exceptions import UnknownTask
from tasks.framework import declaration
from tasks.framework.declaration import PostgresTask
from tasks.framework.decorator import task
from tests.tasks import handlers


def declare(**options: object) -> PostgresTask:
    return task(**options)(handlers.nothing.func)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 1, "timeout": 0.5, "priority": -100},
        {"max_attempts": 1000, "timeout": 3600, "priority": 100},
        {"backoff": lambda attempt: 2.0 * attempt, "ordering_key": lambda *args: "key"},
        {"unique_key": True, "unique_while": "queued", "on_duplicate": "replace"},
        {"unique_key": lambda *args: "key", "concurrency_key": "k" * 255, "concurrency_limit": 10_000},
        {"ordering_key": "k" * 255, "ordered_by_commit": True, "durable": True, "queue_name": "mail.out"},
    ],
)
def test_options_are_kept_as_they_are_given(options):
    declared = declare(**options)
    assert {name: getattr(declared, name) for name in options} == options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number, 1 to 1000"),
        ({"max_attempts": 1001}, "max_attempts must be a whole number, 1 to 1000"),
        ({"max_attempts": True}, "max_attempts must be a whole number"),
        ({"max_attempts": "3"}, "max_attempts must be a whole number"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"timeout": float("inf")}, "timeout must be a number of seconds above 0"),
        ({"timeout": float("nan")}, "timeout must be a number of seconds above 0"),
        ({"timeout": "1m"}, "timeout must be a number of seconds above 0"),
        ({"backoff": 5}, "backoff must be a callable of the attempt's number"),
        ({"ordering_key": 5}, "ordering_key must be text or a callable of the arguments; this must be text, not int"),
        ({"ordering_key": ""}, "ordering_key must be .* this must not be empty"),
        ({"ordering_key": "a\0"}, "ordering_key must be .* this holds a NUL character"),
        ({"unique_key": 5}, "unique_key must be text or a callable of the arguments; this must be text, not int"),
        ({"unique_key": ""}, "unique_key must be .* this must not be empty"),
        ({"unique_key": "k" * 256}, "unique_key must be .* this has 256 characters, at most 255 fit"),
        ({"concurrency_key": True}, "concurrency_key must be .* this must be text, not bool"),
        ({"concurrency_key": "a\n"}, "concurrency_key must be .* this holds the control character"),
        ({"unique_while": "running"}, "unique_while must be 'queued' or 'active'"),
        ({"on_duplicate": None}, "on_duplicate must be 'keep' or 'replace'"),
        ({"concurrency_limit": 3}, "concurrency_limit must be a whole number, 1 to 10000, beside a concurrency_key"),
        ({"rate_limit": "100"}, "rate_limit must be text like '100/m'"),
        ({"rate_limit": "0/s"}, "rate_limit must be text like '100/m'"),
        ({"rate_key": "a\n"}, "rate_key must be .* this holds the control character"),
        (
            {"ordering_key": "o", "rate_limit": "1/s"},
            "ordering_key must be left out beside a concurrency_key or a rate",
        ),
        ({"ordering_key": "o", "concurrency_key": "k"}, "ordering_key must be left out"),
        ({"concurrency_key": "k", "concurrency_limit": 0}, "concurrency_limit must be a whole number, 1 to 10000"),
        ({"concurrency_key": "k", "concurrency_limit": 10_001}, "concurrency_limit must be a whole number, 1 to 10000"),
        ({"ordered_by_commit": "yes"}, "ordered_by_commit must be True or False"),
        ({"durable": 1}, "durable must be True or False"),
        ({"queue_name": ""}, "queue_name must be a queue's name; this must not be empty"),
        ({"queue_name": "a\0"}, "queue_name must be a queue's name; this holds a NUL character"),
        ({"queue_name": "q" * 256}, "this has 256 characters, at most 255 fit"),
        ({"queue_name": None}, "this must be text, not NoneType"),
        ({"priority": 101}, "priority must be a whole number between -100 and 100"),
        ({"priority": 1.5}, "priority must be a whole number between -100 and 100"),
        ({"priority": "high"}, "priority must be a whole number between -100 and 100"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_the_task_s_name(options, message):
    with pytest.raises(InvalidTask, match=message) as refusal:
        declare(**options)
    assert "tests.tasks.handlers.nothing" in str(refusal.value)


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="retries"):
        declare(retries=3)


def test_a_copy_for_one_call_keeps_the_options_and_leaves_the_declaration():
    copy = handlers.fail_once.using(ordering_key="one", priority=3)
    assert (copy.max_attempts, copy.ordering_key, copy.priority) == (1, "one", 3)
    assert (handlers.fail_once.ordering_key, handlers.fail_once.priority) == (None, 0)
    assert copy.using(queue_name="mail").ordering_key == "one"


def test_a_declared_task_is_found_by_its_path_and_a_copy_does_not_take_its_place():
    handlers.nothing.using(priority=9)
    assert declaration.get("tests.tasks.handlers.nothing") is handlers.nothing
    assert "tests.tasks.handlers.nothing" in declaration.paths()


def test_a_path_is_never_imported():
    assert declaration.find("os.system") is None
    with pytest.raises(UnknownTask, match=r"No task is registered as 'os\.system'\. Declare it with @task"):
        declaration.get("os.system")


def test_a_reloaded_module_replaces_its_tasks(monkeypatch):
    monkeypatch.setattr(declaration, "_registered", dict(declaration._registered))

    def redefine() -> object:
        scope: dict = {"__name__": "reloaded.tasks"}
        exec("def work(): pass", scope)
        return task(scope["work"])

    first, second = redefine(), redefine()
    assert first is not second
    assert declaration.get("reloaded.tasks.work") is second
