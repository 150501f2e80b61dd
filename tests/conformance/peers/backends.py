"""Our backend with what the tests of the framework's own backends ask of those, and which of them are about others."""

from typing import Any

from tasks import testing
from tasks.backend import PostgresBackend
from tasks.compat import Task, TaskResult
from tasks.models import Task as TaskRow


class Dummy(PostgresBackend):
    """Lists what is enqueued, as the dummy backend does."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.results: list[TaskResult] = []

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        self.results.append(super().enqueue(task, args, kwargs))
        return self.results[-1]

    def clear(self) -> None:
        self.results.clear()
        TaskRow.objects.all().delete()


class Immediate(PostgresBackend):
    """Runs what is enqueued before the caller goes on, as the immediate backend does."""

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        result = super().enqueue(task, args, kwargs)
        testing.run_due()
        return self.get_result(result.id)


DUMMY = {"BACKEND": "backends.Dummy", "QUEUES": []}
IMMEDIATE = {"BACKEND": "backends.Immediate", "QUEUES": []}
SUBSTITUTES = {
    ("test_tasks", "TaskTestCase"): {
        "default": {**DUMMY, "QUEUES": ["default", "queue_1"]},
        "immediate": IMMEDIATE,
        "missing": {"BACKEND": "does.not.exist"},
    },
    ("test_dummy_backend", "DummyBackendTestCase"): {"default": DUMMY},
    ("test_immediate_backend", "ImmediateBackendTestCase"): {"default": IMMEDIATE},
}
ITS_CLASS = "asserts the class of the framework's own backend"
ITS_LIST = "writes the outcome into the dummy backend's own list"
KEPT = "asserts that the immediate backend keeps no result; ours does"
BLOCKS = "calls a blocking method in an event loop, which Django refuses where a database is behind it"
OUT_OF_SCOPE = {
    ("TaskTestCase", "test_using_correct_backend"): ITS_CLASS,
    ("TaskTestCase", "test_get_backend"): ITS_CLASS,
    ("TaskTestCase", "test_refresh_result"): ITS_LIST,
    ("TaskTestCase", "test_get_missing_result"): BLOCKS,
    ("DummyBackendTestCase", "test_using_correct_backend"): ITS_CLASS,
    ("DummyBackendTestCase", "test_get_missing_result"): BLOCKS,
    ("DummyBackendTestCase", "test_refresh_result"): ITS_LIST,
    ("DummyBackendTestCase", "test_refresh_result_async"): ITS_LIST,
    ("ImmediateBackendTestCase", "test_using_correct_backend"): ITS_CLASS,
    ("ImmediateBackendTestCase", "test_cannot_get_result"): KEPT,
    ("ImmediateBackendTestCase", "test_cannot_refresh_result"): KEPT,
    ("ImmediateBackendTestCase", "test_get_result_from_different_request"): KEPT,
    (
        "ImmediateBackendTestCase",
        "test_throws_keyboard_interrupt",
    ): "asserts that no failure is logged; ours is recorded",
    ("ImmediateBackendTestCase", "test_cannot_pass_run_after"): "asserts that it cannot wait; ours can",
}
