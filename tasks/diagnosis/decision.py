"""Decide which verdict a task has, and put it into words: a sentence, its references, and the command that would help.

HINDRANCES lists the reasons why a READY task does not run, in their order. Each function in SENTENCES is called only
with a task that has its verdict.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from tasks import conf
from tasks.diagnosis import facts, limits
from tasks.diagnosis.facts import COUNT_CAP, Facts, WorkerSession
from tasks.diagnosis.finding import OF_LIFE, Finding, Link, Verdict, command, describe_lock, ending_of
from tasks.locking import rowlocks
from tasks.models import Queue, Task, TaskStatus
from tasks.queue import presence
from tasks.queue.presence import Life, WorkerState
from tasks.support.durations import spoken


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
    life = Life.DEAD if worker is None else worker.life
    if worker is None or life in OF_LIFE:
        return OF_LIFE[life]
    if task.cancel_requested_at is not None:
        return Verdict.CANCELLING
    return Verdict.RUNNING if worker.runs(task.pk) else Verdict.IN_BATCH


def hindrances(task: Task, facts: Facts) -> Iterator[Verdict]:
    """Every reason why a READY task does not run, most important first."""
    return (verdict for verdict, is_met in HINDRANCES.items() if is_met(task, facts))


def is_held_by_key(task: Task, facts: Facts) -> bool:
    key = facts.keys.get(task.ordering_key or "")
    return key is not None and key.holder_id != task.pk


def is_paused(task: Task, facts: Facts) -> bool:
    queue = facts.queues.get(task.queue_name)
    return (queue is not None and queue.paused) or limits.paused(task, facts) is not None


def is_unserved(task: Task, facts: Facts) -> bool:
    return not facts.servers(task.queue_name)


def is_unknown(task: Task, facts: Facts) -> bool:
    servers = facts.servers(task.queue_name)
    return bool(servers) and not any(task.task_path in (worker.task_paths or ()) for worker in servers)


def is_row_locked(task: Task, facts: Facts) -> bool:
    lock = facts.locks.get(task.pk)
    return lock is not None and lock.is_exclusive


def is_key_missing(task: Task, facts: Facts) -> bool:
    return any(worker.id == facts.locked_by.get(task.pk) for worker in facts.servers(task.queue_name))


HINDRANCES: dict[Verdict, Callable[[Task, Facts], bool]] = {
    Verdict.KEY_MISSING: is_key_missing,  # the wait follows from it
    Verdict.WAITING: lambda task, facts: task.run_after > facts.now,
    Verdict.HELD_BY_KEY: is_held_by_key,
    Verdict.WAITING_FOR_SLOT: lambda task, facts: limits.full(task, facts) is not None,
    Verdict.WAITING_FOR_RATE: lambda task, facts: limits.spent(task, facts) is not None,
    Verdict.PAUSED: is_paused,
    Verdict.NO_WORKER: is_unserved,
    Verdict.UNKNOWN_TASK: is_unknown,
    Verdict.ROW_LOCKED: is_row_locked,
}


def statements_of(task: Task) -> list[str]:
    """The statements that decided this task's verdict, as they were sent; `%(…)s` are their parameters."""
    by_status = {
        TaskStatus.READY: [facts.POSITIONS, limits.LIMITS, presence.STATES, facts.ERRORS],
        TaskStatus.PROCESSING: [presence.STATES, facts.SESSIONS],
        TaskStatus.FAILED: [facts.ERRORS],
        TaskStatus.CANCELLED: [facts.CANCELLERS],
        TaskStatus.COMPLETED: [],
    }
    found = [rowlocks.statement_of(Task), *by_status[TaskStatus(task.status)]]
    if task.ordering_key is not None and task.finished_at is None:
        found.append(facts.KEYS)
    return [statement.strip() for statement in found]


def key_missing(task: Task, facts: Facts) -> Finding:
    worker_id = facts.locked_by[task.pk]
    sentence = _(
        "Worker %(worker)s gave it back: its arguments are encrypted with a key that this worker does not have. No "
        "attempt was spent."
    )
    return Finding(Verdict.KEY_MISSING, sentence % {"worker": worker_id}, (Link("worker", worker_id),))


def waiting(task: Task, facts: Facts) -> Finding:
    values = {
        "attempt": task.attempt + 1,
        "limit": task.max_attempts,
        "time": f"{task.run_after:%Y-%m-%d %H:%M:%S} UTC",
        "age": spoken((task.run_after - facts.now).total_seconds()),
    }
    sentence = _("Attempt %(attempt)d of %(limit)d waits until %(time)s, in %(age)s.") % values
    now = command("edit_tasks", str(task.pk), "--set-run-after", "now")
    return Finding(Verdict.WAITING, sentence + waiting_behind(task, facts), (), now)


def held_by_key(task: Task, facts: Facts) -> Finding:
    holder_id = facts.keys[task.ordering_key or ""].holder_id
    values = {"id": holder_id, "key": task.ordering_key}
    sentence = _("Held by #%(id)d, the unfinished task before it with the key “%(key)s”.") % values
    return Finding(Verdict.HELD_BY_KEY, sentence, (Link("task", str(holder_id)), Link("key", task.ordering_key or "")))


def paused(task: Task, facts: Facts) -> Finding:
    queue = facts.queues.get(task.queue_name)
    if queue is not None and queue.paused:
        sentence = _("The queue %(queue)s was paused by %(actor)s")
        values = {"queue": queue.name, "actor": queue.paused_by or _("somebody")}
        since, link, resume = queue.paused_at, Link("queue", queue.name), command("resume_queue", queue.name)
    else:
        limit = limits.paused(task, facts)
        assert limit is not None
        sentence = _("The key “%(key)s” was paused by %(actor)s")
        values = {"key": limit.name, "actor": limit.paused_by or _("somebody")}
        since, link = limit.paused_at, limits.link_of(limit)
        resume = command("configure_limit", limit.name, "--resume")
    ago = _(", %(age)s ago") % {"age": age_of(facts, since)} if since is not None else ""
    return Finding(Verdict.PAUSED, sentence % values + ago + ".", (link,), resume)


def no_worker(task: Task, facts: Facts) -> Finding:
    sentence = _("No live worker serves the queue %(queue)s.") % {"queue": task.queue_name}
    start = command("run_worker", "--queue", task.queue_name)
    return Finding(Verdict.NO_WORKER, sentence, (Link("queue", task.queue_name),), start)


def unknown_task(task: Task, facts: Facts) -> Finding:
    sentence = _(
        "No worker of the queue %(queue)s has a function registered as %(path)s; attempts are not spent on it."
    )
    return Finding(Verdict.UNKNOWN_TASK, sentence % {"queue": task.queue_name, "path": task.task_path})


def row_locked(task: Task, facts: Facts) -> Finding:
    lock = facts.locks[task.pk]
    sentence = _("%(holder)s; workers pass it by until then.") % {"holder": describe_lock(lock)}
    return Finding(Verdict.ROW_LOCKED, sentence, session_links(locker.pid for locker in lock.lockers))


def ready(task: Task, facts: Facts) -> Finding:
    position = facts.positions.get(task.pk)
    if task.ordering_key is not None:
        sentence = _("Due, and the first of its key “%(key)s”.") % {"key": task.ordering_key}
        return Finding(Verdict.READY, sentence + waiting_behind(task, facts), (Link("key", task.ordering_key),))
    if task.concurrency_key is not None:
        sentence = _("Due, and its limit “%(key)s” allows one more.") % {"key": task.concurrency_key}
        return Finding(Verdict.READY, sentence, (Link("limit", task.concurrency_key),))
    if position is None:
        return Finding(Verdict.READY, _("Due; more than %(cap)d tasks go before it.") % {"cap": COUNT_CAP})
    return Finding(Verdict.READY, _("Due; number %(position)d in its queue.") % {"position": position})


def running(task: Task, facts: Facts) -> Finding:
    worker = worker_of(task, facts)
    is_longest = worker.current_task_id == task.pk
    since = (worker.current_since if is_longest else None) or task.started_at
    values = {"worker": worker.id, "age": age_of(facts, since) if since else _("a moment")}
    sentence = _("Worker %(worker)s has been on it for %(age)s.") % values
    session = session_of(worker, facts)
    links = (Link("worker", worker.id), *session_links([session.pid] if session and session.blockers else []))
    return Finding(Verdict.RUNNING, sentence + wait_of(worker, facts) + waiting_behind(task, facts), links)


def in_batch(task: Task, facts: Facts) -> Finding:
    worker = worker_of(task, facts)
    if worker.current_task_id is None:
        sentence = _("Claimed by worker %(worker)s, which runs a batch of short tasks.")
        return Finding(Verdict.IN_BATCH, sentence % {"worker": worker.id}, (Link("worker", worker.id),))
    values = {"worker": worker.id, "id": worker.current_task_id}
    sentence = _("Claimed by worker %(worker)s, which still runs #%(id)d.") % values
    links = (Link("worker", worker.id), Link("task", str(worker.current_task_id)))
    return Finding(Verdict.IN_BATCH, sentence + wait_of(worker, facts), links)


def cancelling(task: Task, facts: Facts) -> Finding:
    assert task.cancel_requested_at is not None
    worker = worker_of(task, facts)
    values = {"worker": worker.id, "age": age_of(facts, task.cancel_requested_at)}
    sentence = _("Worker %(worker)s was asked %(age)s ago to end it, and has not done so yet.") % values
    return Finding(Verdict.CANCELLING, sentence + wait_of(worker, facts), (Link("worker", worker.id),))


def worker_silent(task: Task, facts: Facts) -> Finding:
    return silent(worker_of(task, facts))


def silent(worker: WorkerState) -> Finding:
    """The finding for a worker whose heartbeat is late, whatever it holds."""
    if worker.life is Life.RESTARTED:
        lease_left = worker.lease_seconds - (worker.heartbeat_age_seconds or 0)
        sentence = _("The database restarted and worker %(worker)s is not back yet; recovery waits %(left)s for it.")
        values = {"worker": worker.id, "left": spoken(max(0.0, worker.grace_seconds, lease_left))}
    else:
        sentence = _(
            "Worker %(worker)s keeps its session but has not been heard for %(age)s; recovery waits %(left)s for it."
        )
        age, left = spoken(worker.heartbeat_age_seconds or 0), spoken(worker.grace_seconds)
        values = {"worker": worker.id, "age": age, "left": left}
    return Finding(Verdict.WORKER_SILENT, sentence % values, (Link("worker", worker.id),))


def worker_dead(task: Task, facts: Facts) -> Finding:
    worker = facts.workers.get(task.claimed_by or "")
    sentence = " ".join((death(task, worker, facts), recovery_of(task, facts)))
    return Finding(Verdict.WORKER_DEAD, sentence, (Link("worker", task.claimed_by or ""),), command("recover_tasks"))


def death(task: Task, worker: WorkerState | None, facts: Facts) -> str:
    """The evidence that the worker is dead, and since when."""
    values = {"worker": task.claimed_by}
    if worker is None or not worker.registered:
        return _("Worker %(worker)s is registered nowhere.") % values
    if worker.stopped_at is not None:
        values |= {"age": age_of(facts, worker.stopped_at), "reason": ending_of(worker.stop_reason or "stopped")}
        return _("Worker %(worker)s ended %(age)s ago (%(reason)s).") % values
    if worker.is_presence_lost:
        if (worker.missing_seconds or 0) < 1:
            return _("The database session of worker %(worker)s disconnected just now.") % values
        values |= {"age": spoken(worker.missing_seconds or 0)}
        return _("The database session of worker %(worker)s disconnected at least %(age)s ago.") % values
    values |= {"age": spoken(worker.heartbeat_age_seconds or 0)}
    return _("Worker %(worker)s has not been heard for %(age)s, longer than its lease.") % values


def recovery_of(task: Task, facts: Facts) -> str:
    queue = facts.queues.get(task.queue_name)
    if queue is not None and queue.recovery == Queue.Recovery.ASK:
        return _("Recovery of the queue %(queue)s is manual: take it back.") % {"queue": task.queue_name}
    if not facts.live_workers:
        return _("No live worker is there to take it back: start one.")
    values = {"age": spoken(conf.get("SWEEP_SECONDS"))}
    return _("A living worker takes it back with its next sweep, due within %(age)s.") % values


def completed(task: Task, facts: Facts) -> Finding:
    sentence = _("Completed by worker %(worker)s.") % {"worker": task.finished_by or _("unknown")}
    if task.started_at and task.finished_at:
        age = spoken((task.finished_at - task.started_at).total_seconds())
        sentence += " " + _("It ran for %(age)s.") % {"age": age}
    links = (Link("worker", task.finished_by),) if task.finished_by else ()
    return Finding(Verdict.COMPLETED, sentence, links)


def failed(task: Task, facts: Facts) -> Finding:
    text = ngettext("Failed after %(number)d attempt", "Failed after %(number)d attempts", task.attempt)
    error = facts.errors.get(task.pk, "")
    sentence = text % {"number": task.attempt} + (f": {error}" if error else ".")
    return Finding(Verdict.FAILED, sentence, (), command("requeue_tasks", str(task.pk)))


def cancelled(task: Task, facts: Facts) -> Finding:
    actor = facts.cancellers.get(task.pk)
    sentence = (
        _("Cancelled by %(actor)s.") % {"actor": actor} if actor else _("Cancelled; the audit does not say by whom.")
    )
    return Finding(Verdict.CANCELLED, sentence, (), command("requeue_tasks", str(task.pk)))


# Each function's name is the value of its verdict.
SENTENCES: dict[Verdict, Callable[[Task, Facts], Finding]] = {
    Verdict(function.__name__): function
    for function in (
        key_missing, waiting, held_by_key, limits.waiting_for_slot, limits.waiting_for_rate, paused, no_worker,
        unknown_task, row_locked, ready, cancelling, running, in_batch, worker_silent, worker_dead, completed, failed,
        cancelled,
    )
}  # fmt: skip


def worker_of(task: Task, facts: Facts) -> WorkerState:
    """The worker that holds the task; it must be known."""
    return facts.workers[task.claimed_by or ""]


def waiting_behind(task: Task, facts: Facts) -> str:
    """The number of tasks that wait for this task's key, if it holds one."""
    key = facts.keys.get(task.ordering_key or "")
    if key is None or key.holder_id != task.pk or not key.waiting:
        return ""
    if key.waiting > COUNT_CAP:
        return " " + _("More than %(cap)d wait behind it.") % {"cap": COUNT_CAP}
    text = ngettext("%(number)d task waits behind it.", "%(number)d tasks wait behind it.", key.waiting)
    return " " + text % {"number": key.waiting}


def session_of(worker: WorkerState, facts: Facts) -> WorkerSession | None:
    """The session of the worker's handler; None if several run, since it may be another one's."""
    return None if len(worker.running_ids or ()) > 1 else facts.sessions.get(worker.id)


def wait_of(worker: WorkerState, facts: Facts) -> str:
    """The wait event of the worker's database session, if it has one."""
    session = session_of(worker, facts)
    if session is None or session.wait_event is None:
        return ""
    values = {"pid": session.pid, "event": session.waits_for}
    if session.is_idle:
        return " " + _("Its session, pid %(pid)d, is idle.") % values
    if not session.blockers:
        return " " + _("Its session, pid %(pid)d, waits for %(event)s.") % values
    values["blockers"] = ", ".join(map(str, session.blockers))
    return " " + _("Its session, pid %(pid)d, waits for %(event)s, blocked by pid %(blockers)s.") % values


def age_of(facts: Facts, moment: datetime) -> str:
    return spoken((facts.now - moment).total_seconds())


def session_links(pids: Iterable[int | None]) -> tuple[Link, ...]:
    """Links to sessions of the database; a prepared transaction has none."""
    return tuple(Link("session", str(pid)) for pid in pids if pid is not None)
