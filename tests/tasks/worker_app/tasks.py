"""Handlers for worker processes under test: their effects go to the ledger, and some behave as badly as they can."""

import asyncio
import ctypes
import functools
import gc
import logging
import os
import random
import re
import signal
import sys
import time

from django.db import connection, transaction
from django.utils import timezone

from tasks.compat import TaskContext, TaskResult, task_finished
from tasks.framework.decorator import task
from tasks.models import Queue, Task
from tasks.queue import wakeup
from tasks.support.durations import StatementTimestamp
from tasks.worker import fetch, leader
from tests import ledger
from tests.ledger import effect
from tests.tasks.worker_app import pooled
from tests.waiting import wait_until

__all__ = ["pooled"]  # imported for its tasks
if "TEST_POLL_SECONDS" in os.environ:  # so long that only a notification can be what wakes an idle worker
    leader.POLL_SECONDS = float(os.environ["TEST_POLL_SECONDS"])
if "TEST_BATCH_SECONDS" in os.environ:  # so long that batches grow whatever the machine takes for a task
    fetch.TARGET_SECONDS = float(os.environ["TEST_BATCH_SECONDS"])
if "TEST_CHECK_SECONDS" in os.environ:  # how often a worker looks for claims whose answers were lost
    fetch.CHECK_SECONDS = float(os.environ["TEST_CHECK_SECONDS"])

# Calls through it keep the GIL, as an extension module may that computes for long.
holding_the_gil = ctypes.PyDLL(None)


def at_once(attempt: int) -> float:
    """A backoff of nothing."""
    return 0.0


@task
def quick() -> None:
    """Nothing: many of them make a worker claim big batches."""


def note_end(sender: object, task_result: TaskResult, **_: object) -> None:
    """A receiver of the framework's signal: its effect stands beside that of the handler."""
    with effect(int(task_result.id), task_result.attempts):
        pass


@task
def listen() -> None:
    """From here on each end of a run in this process is noted in the ledger."""
    task_finished.connect(note_end)


@task(takes_context=True)
def work(context: TaskContext, seconds: float = 0.0, again: float | None = None) -> None:
    """The ordinary task: an effect that takes `seconds`, or `again` when it is not the first attempt."""
    with effect(int(context.task_result.id), context.attempt):
        time.sleep(seconds if again is None or context.attempt == 1 else again)


@task(takes_context=True)
def meet(context: TaskContext, number: int) -> None:
    """Lasts until so many processes are at work: none of the first ones can have ended by then."""
    pids = "SELECT count(DISTINCT pid) FROM effect"
    with effect(int(context.task_result.id), context.attempt):
        wait_until(lambda: ledger.connection().execute(pids).fetchone()[0] >= number, seconds=60)


@functools.cache
def jots() -> int:
    return os.open(os.environ["TEST_JOTS"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)


@task(takes_context=True)
def jot(context: TaskContext) -> None:
    """A line in a file, in two microseconds. One in ten thousand lasts, and every other of those keeps the GIL."""
    task_id = int(context.task_result.id)
    os.write(jots(), f"{task_id} {context.attempt}\n".encode())
    if task_id % 20_000 == 7777:
        time.sleep(0.6)
    elif task_id % 20_000 == 17777:
        holding_the_gil.usleep(600_000)


@task(takes_context=True)
def outlast(context: TaskContext) -> None:
    """The first attempt lasts until its task has been taken from it."""
    task_id = int(context.task_result.id)
    with effect(task_id, context.attempt):
        if context.attempt == 1:
            wait_until(lambda: Task.objects.get(pk=task_id).status == "READY", seconds=120)


@task(takes_context=True)
def vary(context: TaskContext, seed: int, pace: float = 1.0) -> None:
    """An effect of a length that its id and the seed decide: mostly milliseconds, now and then half a second.

    `pace`: so many times as long.
    """
    chance = random.Random(f"{seed} {context.task_result.id}")
    with effect(int(context.task_result.id), context.attempt):
        time.sleep(pace * chance.choices((0.0, 0.002, 0.01, 0.1, 0.5), weights=(30, 40, 25, 4, 1))[0])


@task
def isolation() -> list[str]:
    """The levels at which the server runs a statement of a handler: by itself, and in a transaction."""
    levels = []
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        levels += cursor.fetchone()
        with transaction.atomic():
            cursor.execute("SHOW transaction_isolation")
            levels += cursor.fetchone()
    return levels


@task(takes_context=True, max_attempts=1, timeout=1.0, backoff=at_once)
def hang(context: TaskContext) -> None:
    with effect(int(context.task_result.id), context.attempt):
        time.sleep(3600)


@task(takes_context=True, max_attempts=1, timeout=1.0)
def hang_in_c(context: TaskContext) -> None:
    """Backtracks for ever inside the regular expression engine, which keeps the GIL and runs no Python."""
    with effect(int(context.task_result.id), context.attempt):
        re.match(r"(a+)+$", "a" * 64 + "b")


@task(takes_context=True)
def hold_gil(context: TaskContext, seconds: int) -> None:
    with effect(int(context.task_result.id), context.attempt):
        holding_the_gil.sleep(seconds)


@task(takes_context=True, max_attempts=1, timeout=1.0)
def hang_in_query(context: TaskContext) -> None:
    with effect(int(context.task_result.id), context.attempt), connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(60)")


@task(takes_context=True)
def die(context: TaskContext) -> None:
    """The poison pill: kills the process that runs it."""
    with effect(int(context.task_result.id), context.attempt):
        os.kill(os.getpid(), signal.SIGKILL)


@task(takes_context=True)
def eat_memory(context: TaskContext, megabytes: int) -> int:
    """Takes memory piece by piece, and holds on to it when it fails for want of more."""
    with effect(int(context.task_result.id), context.attempt):
        return len([bytearray(1 << 16) for _ in range(16 * megabytes)])


@task(takes_context=True)
def freeze_itself(context: TaskContext) -> None:
    with effect(int(context.task_result.id), context.attempt):
        os.kill(os.getpid(), signal.SIGSTOP)


@task(takes_context=True)
def write_row(context: TaskContext, name: str, seconds: float = 0.0, fail: bool = False) -> None:
    """Writes through the ORM what must stand or fall with the task."""
    with effect(int(context.task_result.id), context.attempt):
        Queue.objects.create(name=name)
        time.sleep(seconds)
        if fail:
            raise ValueError("after the write")


@task(takes_context=True)
def write_in_transaction(context: TaskContext, seconds: float = 0.0) -> None:
    """Writes in a transaction of its own, as handlers do that a database restart may hit at any point."""
    with effect(int(context.task_result.id), context.attempt), transaction.atomic():
        Queue.objects.get_or_create(name="written in a transaction")
        time.sleep(seconds)


@task(takes_context=True)
def lock_its_row(context: TaskContext) -> None:
    """Fails unless the row of its own task is free."""
    with transaction.atomic():
        Task.objects.select_for_update(nowait=True).get(pk=int(context.task_result.id))


@task(max_attempts=1)
def leave_transaction_open() -> None:
    connection.set_autocommit(False)
    Queue.objects.create(name="lost")


@task(max_attempts=1)
def enter_atomic_and_return() -> None:
    transaction.atomic().__enter__()
    Queue.objects.create(name="lost")


@task(max_attempts=1)
def break_connection() -> None:
    connection.ensure_connection()
    connection.connection.close()


@task(max_attempts=1)
def fail_in_broken_transaction() -> None:
    with transaction.atomic():
        Queue.objects.count()
        connection.connection.close()
        Queue.objects.create(name="lost")


@task(max_attempts=1)
def exit_python(status: int = 0) -> None:
    sys.exit(status)


@task(max_attempts=1)
def interrupt() -> None:
    raise KeyboardInterrupt


@task(max_attempts=1)
def return_nul() -> str:
    return "before\0after"


@task(max_attempts=1)
def return_object() -> object:
    return object()


@task(max_attempts=1)
def raise_nul() -> None:
    raise ValueError("before\0after \ud800")


@task
def print_much(megabytes: int) -> None:
    for _ in range(megabytes):
        print("x" * 1_000_000)


@task
def count_queues() -> int:
    """Reads through the ORM: fails where an earlier handler has left the connection unusable."""
    return Queue.objects.count()


@task
def tell_the_time() -> float:
    """By how many seconds this machine's clock is ahead of the database's."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        return timezone.now().timestamp() - cursor.fetchone()[0]


@task(takes_context=True)
def count_claimed(context: TaskContext) -> int:
    """How many rows its worker holds while it runs, its own included."""
    return Task.objects.filter(status="PROCESSING").count()


@task(takes_context=True)
def cancel_a_later_one(context: TaskContext, offset: int) -> None:
    """Asks that the task whose id is larger by `offset` be cancelled."""
    ask_to_cancel(int(context.task_result.id) + offset)


@task(takes_context=True)
def cancel_itself_and_fail(context: TaskContext) -> None:
    with effect(int(context.task_result.id), context.attempt):
        ask_to_cancel(int(context.task_result.id))
        raise ValueError("it failed while somebody wanted it cancelled")


def ask_to_cancel(task_id: int) -> None:
    Task.objects.filter(pk=task_id).update(cancel_requested_at=StatementTimestamp())
    wakeup.summon(connection)


@task(max_attempts=1)
def tell_its_secret(card: str, password: str) -> None:
    """Fails with its secret in the message and in a chained one, and shouts it on both of its outputs."""
    try:
        raise LookupError(f"no account for {password!r}")
    except LookupError as error:
        raise ValueError(f"card {card}: {password}") from error


@task()
def count_frozen() -> int:
    """Objects that no collection of garbage goes through in the process that runs this."""
    return gc.get_freeze_count()


@task()
def count_collections() -> int:
    """How often the process that runs this went through its young objects."""
    return gc.get_stats()[0]["collections"]


@task(takes_context=True, backoff=at_once, timeout=60)
def tell(context: TaskContext, until: int) -> object:
    """Reports and logs until its file of orders says more than `until`; its first attempt lasts until it is killed."""
    context.report(0.25, "a quarter")
    context.checkpoint({"row": 7})
    logging.getLogger("shop").warning("begun with %s", context.state)
    with effect(int(context.task_result.id), context.attempt):
        if context.attempt <= until:
            wait_until(lambda: False, seconds=60)
    return context.state


@task(takes_context=True)
def report_often(context: TaskContext, times: int) -> None:
    for step in range(times):
        context.report(step / times, "on the way")


@task(takes_context=True, backoff=at_once)
async def tell_async(context: TaskContext, until: int) -> object:
    """As `tell`, as a coroutine."""
    context.report(0.25, "a quarter")
    context.checkpoint({"row": 7})
    logging.getLogger("shop").warning("begun with %s", context.state)
    while context.attempt <= until:
        await asyncio.sleep(0.05)
    return context.state


@task(takes_context=True)
def stop_when_cancelled(context: TaskContext) -> None:
    with effect(int(context.task_result.id), context.attempt):
        wait_until(context.is_cancelled, seconds=60)
