"""The backends under test, and what a test has to know of each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from django.utils.module_loading import import_string

from tasks import testing
from tasks.compat import FRAMEWORK, BaseTaskBackend, Task, TaskResult, task_backends


@dataclass(frozen=True)
class Subject:
    """One backend. `run`: lets it run what is due; None when it never runs anything.

    `only_once`: a copy of the task that is not tried again after a failure.
    """

    name: str
    path: str
    run: Callable[[], object] | None
    only_once: Callable[[Task], Task] = lambda task: task

    @property
    def kind(self) -> type[BaseTaskBackend]:
        return import_string(self.path)

    @property
    def backend(self) -> BaseTaskBackend:
        return task_backends["default"]

    def settings(self, **params: Any) -> dict[str, Any]:
        """TASKS with this backend alone; every queue is valid unless `QUEUES` is given."""
        return {"default": {"BACKEND": self.path, "QUEUES": [], **params}}

    def finish(self, result: TaskResult) -> TaskResult:
        """Run what was enqueued; the result as it is afterwards."""
        assert self.run is not None
        self.run()
        if self.kind.supports_get_result:
            result.refresh()
        return result


SUBJECTS = [
    Subject(
        "postgres", "tasks.backend.PostgresBackend", run=testing.run_due, only_once=partial(replace, max_attempts=1)
    ),
    Subject("immediate", f"{FRAMEWORK}.backends.immediate.ImmediateBackend", run=lambda: None),
    Subject("dummy", f"{FRAMEWORK}.backends.dummy.DummyBackend", run=None),
]
RUNNING = [subject for subject in SUBJECTS if subject.run]
DEFERRING = [subject for subject in SUBJECTS if subject.kind.supports_defer]
KEEPING = [subject for subject in SUBJECTS if subject.kind.supports_get_result]
