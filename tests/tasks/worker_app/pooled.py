"""Handlers that run many at once in one process: coroutines, and what one of them may do to the others."""

import asyncio
import time

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from tasks.compat import TaskContext
from tasks.framework.decorator import task
from tasks.models import Queue, Task
from tests.ledger import effect


@task(takes_context=True)
async def rest(context: TaskContext, seconds: float = 0.0) -> None:
    """The ordinary coroutine: an effect that takes `seconds`."""
    with effect(int(context.task_result.id), context.attempt):
        await asyncio.sleep(seconds)


@task(takes_context=True, max_attempts=1, timeout=0.5)
async def rest_too_long(context: TaskContext) -> None:
    """Past its timeout it is cancelled, and says so in the ledger."""
    with effect(int(context.task_result.id), context.attempt):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await Queue.objects.acreate(name="cleaned up")
            raise


@task(takes_context=True, max_attempts=1, timeout=0.5)
async def keep_the_loop(context: TaskContext) -> None:
    """Never gives the event loop back."""
    with effect(int(context.task_result.id), context.attempt):
        time.sleep(3600)


@task(takes_context=True, max_attempts=1, timeout=0.5)
async def will_not_go(context: TaskContext) -> None:
    """Ends with a value although it was cancelled."""
    with effect(int(context.task_result.id), context.attempt):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return


@task(max_attempts=1)
async def raise_exit() -> None:
    raise SystemExit(3)


@task(max_attempts=1)
async def cancel_itself() -> None:
    raise asyncio.CancelledError


@task(takes_context=True)
async def count_and_enqueue(context: TaskContext) -> int:
    """Uses the ORM and the queue as a coroutine does."""
    await rest.aenqueue()
    await Queue.objects.acreate(name=f"written by {context.task_result.id}")
    return await Task.objects.filter(pk=int(context.task_result.id)).acount()


@task(takes_context=True, max_attempts=1, timeout=1.0)
async def wait_for_lock(context: TaskContext) -> None:
    """Waits for a row that somebody else holds."""
    with effect(int(context.task_result.id), context.attempt):
        await Queue.objects.filter(name="held").aupdate(paused=True)


@task(max_attempts=1)
async def leave_a_transaction_open() -> None:
    def leave() -> None:
        connection.set_autocommit(False)
        Queue.objects.create(name="lost")

    await sync_to_async(leave)()


@task(max_attempts=1)
async def break_its_connection() -> None:
    def close() -> None:
        connection.ensure_connection()
        connection.connection.close()

    await sync_to_async(close)()


def show_commit() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        return cursor.fetchone()[0]


@task
def commit_as_usual() -> str:
    return show_commit()


@task(relaxed_commit=True)
def commit_relaxed(fails: bool = False) -> str:
    if fails:
        raise ValueError("it fails in a relaxed session")
    return show_commit()


@task(relaxed_commit=True)
async def commit_relaxed_async() -> str:
    return await sync_to_async(show_commit)()


@task
async def commit_as_usual_async() -> str:
    return await sync_to_async(show_commit)()


@task(relaxed_commit=False)
def never_relax() -> str:
    return show_commit()


def at_once(attempt: int) -> float:
    """A backoff of nothing."""
    return 0.0


@task(takes_context=True, relaxed_commit=True, max_attempts=1000, backoff=at_once)
def write_relaxed(context: TaskContext) -> None:
    """One row for this task, committed by itself; its effect ends once the server has confirmed the commit."""
    with effect(int(context.task_result.id), context.attempt):
        Queue.objects.get_or_create(name=f"written by {context.task_result.id}")


@task(takes_context=True)
def hold_in_transaction(context: TaskContext, seconds: float) -> None:
    with effect(int(context.task_result.id), context.attempt), transaction.atomic():
        Queue.objects.create(name=context.task_result.id)
        time.sleep(seconds)
