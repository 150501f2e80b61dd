"""The backends under test, and what a test has to know of each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from django.utils.module_loading import import_string

from tasks import testing
from tasks.compat import FRAMEWORK, BaseTaskBackend, Task, TaskResult, task_backends
from tests.commands import run_process


@dataclass(frozen=True)
class Subject:
    """One backend. `run`: lets it run what is due; None when it never runs anything.

    `only_once`: a copy of the task that is not tried again after a failure. `in_process`: it runs tasks in the process
    of the test, which can then hear their signals; otherwise in another one, which sees only what is committed.
    """

    name: str
    path: str
    run: Callable[[], object] | None
    only_once: Callable[[Task], Task] = lambda task: task
    in_process: bool = True

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


def run_worker() -> None:
    """A worker's own process, in which this package is an app, so that its tasks are registered."""
    worker = run_process("run_worker", "--burst", env={"ROWLOCK_APPS": "tests.conformance"})
    assert worker.status == 0, worker.stderr


OURS = "tasks.backend.PostgresBackend"
once = partial(replace, max_attempts=1)

SUBJECTS = [
    Subject("postgres", OURS, run=testing.run_due, only_once=once),
    Subject("immediate", f"{FRAMEWORK}.backends.immediate.ImmediateBackend", run=lambda: None),
    Subject("dummy", f"{FRAMEWORK}.backends.dummy.DummyBackend", run=None),
]
WORKER = Subject("worker", OURS, run=run_worker, only_once=once, in_process=False)
RUNNING = [*(subject for subject in SUBJECTS if subject.run), WORKER]
IN_PROCESS = [subject for subject in RUNNING if subject.in_process]
DEFERRING = [subject for subject in SUBJECTS if subject.kind.supports_defer]
KEEPING = [subject for subject in SUBJECTS if subject.kind.supports_get_result]
