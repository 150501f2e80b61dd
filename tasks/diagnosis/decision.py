"""Decide which verdict a task has. HINDRANCES lists the reasons why a READY task does not run, in their order."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tasks.diagnosis import facts
from tasks.diagnosis.facts import Facts
from tasks.diagnosis.finding import Finding, Verdict
from tasks.diagnosis.sentences import SENTENCES
from tasks.locking import rowlocks
from tasks.models import Task, TaskStatus
from tasks.queue import presence
from tasks.queue.presence import Life


def decide(task: Task, facts: Facts) -> Finding:
    """The verdict on one task, in words. `also` holds the further reasons why a READY task does not run."""
    if task.status != TaskStatus.READY:
        return SENTENCES[verdict_of(task, facts)](task, facts)
    verdicts = list(hindrances(task, facts)) or [Verdict.READY]
    first, *others = (SENTENCES[verdict](task, facts) for verdict in verdicts)
    return replace(first, also=tuple(others))


def verdict_of(task: Task, facts: Facts) -> Verdict:
    """The verdict alone. Pure: the same row and facts give the same verdict."""
    if task.status == TaskStatus.READY:
        return next(hindrances(task, facts), Verdict.READY)
    if task.status != TaskStatus.PROCESSING:
        return Verdict(task.status.lower())
    worker = facts.workers.get(task.claimed_by or "")
    if worker is None or worker.life in (Life.DEAD, Life.MISSING):
        return Verdict.WORKER_DEAD
    if worker.life in (Life.SILENT, Life.RESTARTED):
        return Verdict.WORKER_SILENT
    if task.cancel_requested_at is not None:
        return Verdict.CANCELLING
    return Verdict.RUNNING if worker.current_task_id == task.pk else Verdict.IN_BATCH


def hindrances(task: Task, facts: Facts) -> Iterator[Verdict]:
    """Every reason why a READY task does not run, most important first."""
    return (verdict for verdict, is_met in HINDRANCES.items() if is_met(task, facts))


def is_waiting(task: Task, facts: Facts) -> bool:
    return task.run_after > facts.now


def is_held_by_key(task: Task, facts: Facts) -> bool:
    key = facts.keys.get(task.ordering_key or "")
    return key is not None and key.holder_id != task.pk


def is_paused(task: Task, facts: Facts) -> bool:
    queue = facts.queues.get(task.queue_name)
    return queue is not None and queue.paused


def is_unserved(task: Task, facts: Facts) -> bool:
    return not facts.servers(task.queue_name)


def is_unknown(task: Task, facts: Facts) -> bool:
    servers = facts.servers(task.queue_name)
    return bool(servers) and not any(task.task_path in (worker.task_paths or ()) for worker in servers)


def is_row_locked(task: Task, facts: Facts) -> bool:
    lock = facts.locks.get(task.pk)
    return lock is not None and lock.is_exclusive


HINDRANCES: dict[Verdict, Callable[[Task, Facts], bool]] = {
    Verdict.WAITING: is_waiting,
    Verdict.HELD_BY_KEY: is_held_by_key,
    Verdict.PAUSED: is_paused,
    Verdict.NO_WORKER: is_unserved,
    Verdict.UNKNOWN_TASK: is_unknown,
    Verdict.ROW_LOCKED: is_row_locked,
}


def statements_of(task: Task) -> list[str]:
    """The statements that decided this task's verdict, as they were sent; `%(…)s` are their parameters."""
    by_status = {
        TaskStatus.READY: [facts.POSITIONS, presence.STATES],
        TaskStatus.PROCESSING: [presence.STATES, facts.SESSIONS],
        TaskStatus.FAILED: [facts.ERRORS],
        TaskStatus.CANCELLED: [facts.CANCELLERS],
        TaskStatus.COMPLETED: [],
    }
    found = [rowlocks.statement_of(Task), *by_status[TaskStatus(task.status)]]
    if task.ordering_key is not None and task.finished_at is None:
        found.append(facts.KEYS)
    return [statement.strip() for statement in found]
