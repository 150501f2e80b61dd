"""Quarantine: harmful tasks wait in a paused queue for a person, who can put them back."""

from collections import defaultdict

from django.utils.translation import gettext_lazy

from tasks.models import Intervention, Task, TaskStatus
from tasks.operations.filters import TaskFilter
from tasks.operations.queues import pause
from tasks.operations.requeue import MOST_ATTEMPTS, allowance
from tasks.operations.unique import make_ready
from tasks.operations.verb import EXHAUSTED, Reason, Refusal, Result, Verb
from tasks.support import audit

QUEUE = "quarantine"
FROM = "quarantine from="  # prefix of the intervention that stores the queue

# A FAILED row becomes READY, with new attempts, so that it can run after quarantine.
QUARANTINE = """
UPDATE tasks_task AS task
SET queue_name = %(queue)s::text, status = 'READY', version = task.version + 1, finished_at = NULL,
    cancel_requested_at = NULL, max_attempts = chosen.max_attempts,
    run_after = CASE task.status WHEN 'READY' THEN task.run_after ELSE statement_timestamp() END,
    unique_while = CASE WHEN task.unique_while = 'b' AND task.status = 'FAILED' THEN 'q' ELSE task.unique_while END
FROM unnest(%(ids)s::bigint[], %(limits)s::smallint[]) AS chosen (id, max_attempts) WHERE task.id = chosen.id
RETURNING task.id, task.version
"""

PUT_BACK = """
UPDATE tasks_task AS task SET queue_name = origin.queue_name, version = task.version + 1
FROM unnest(%(ids)s::bigint[], %(names)s::text[]) AS origin (id, queue_name) WHERE task.id = origin.id
RETURNING task.id, task.version
"""

QUARANTINED = Reason("quarantined", gettext_lazy("it is in quarantine already"))
NOT_QUARANTINED = Reason("not_quarantined", gettext_lazy("it does not wait in quarantine"))
NO_ORIGIN = Reason(
    "no_origin", gettext_lazy("the audit does not say where it came from; move it with `edit_tasks --set-queue`")
)


class Quarantine(Verb):
    """Move READY and FAILED tasks into the paused queue `quarantine`, as READY.

    The queue is paused first, so that none of them can be claimed on its way.
    """

    name = "quarantine"
    label = gettext_lazy("Quarantine")
    right = "tasks.edit_task"
    statuses = (TaskStatus.READY, TaskStatus.FAILED)
    words = ("quarantine_tasks",)

    def perform(self, chosen: TaskFilter) -> Result:
        pause(QUEUE, self.who, reason=self.settings.reason, dry_run=self.dry_run)
        return super().perform(chosen)

    def refusal(self, task: Task) -> Refusal | None:
        if task.queue_name == QUEUE and task.status == TaskStatus.READY:
            return QUARANTINED.refuse(task)
        if task.status in self.statuses and attempts_for(task) > MOST_ATTEMPTS:
            return EXHAUSTED.refuse(task)
        return super().refusal(task)

    def write(self, tasks: list[Task]) -> None:
        make_ready(self, tasks, self._move)

    def _move(self, tasks: list[Task]) -> list[int]:
        by_queue = defaultdict(list)
        for task in tasks:
            by_queue[task.queue_name].append(task)
        done: list[int] = []
        for queue_name, some in by_queue.items():
            params = {"queue": QUEUE, "limits": list(map(attempts_for, some))}
            done += self.change(QUARANTINE, some, params, action=FROM + queue_name)
        self.result.done += done
        return done


class PutBack(Verb):
    """Move tasks of the queue `quarantine` back to their previous queue, which the audit keeps."""

    name = "put_back"
    label = gettext_lazy("Put back")
    right = "tasks.edit_task"
    statuses = (TaskStatus.READY,)
    words = ("quarantine_tasks", "--undo")

    def refusal(self, task: Task) -> Refusal | None:
        is_quarantined = task.status == TaskStatus.READY and task.queue_name == QUEUE
        return None if is_quarantined else NOT_QUARANTINED.refuse(task)

    def write(self, tasks: list[Task]) -> None:
        origins = origins_of(tasks)
        known = [task for task in tasks if task.id in origins]
        self.result.refused |= {task.id: NO_ORIGIN.refuse(task) for task in tasks if task.id not in origins}
        self.result.done += self.change(PUT_BACK, known, {"names": [origins[task.id] for task in known]})


def attempts_for(task: Task) -> int:
    """The task's `max_attempts` in quarantine: its own, or with new attempts if it had failed."""
    return task.max_attempts if task.status == TaskStatus.READY else task.attempt + allowance(task.task_path)


def origins_of(tasks: list[Task]) -> dict[int, str]:
    """The previous queue of each task by id, as far as the audit has it."""
    targets = {audit.task(task.id): task.id for task in tasks}
    moves = Intervention.objects.filter(target__in=targets, action__startswith=FROM).order_by("id")
    return {targets[target]: action.removeprefix(FROM) for target, action in moves.values_list("target", "action")}


quarantine = Quarantine.act
