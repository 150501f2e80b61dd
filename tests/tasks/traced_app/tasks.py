"""Handlers that use the database, log, fail and enqueue, each in its kind of slot."""

import logging

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from tasks.framework.decorator import task

logger = logging.getLogger("shop")
SEEN = "SELECT query FROM pg_stat_activity WHERE pid = pg_backend_pid()"


def own_query():
    with connection.cursor() as cursor:
        cursor.execute(SEEN)
        return cursor.fetchone()[0]


@task
def look():
    """Return this statement as the server sees it."""
    logger.info("looks")
    return own_query()


@task
async def look_async():
    """The same on an event loop."""
    logger.info("looks")
    return await sync_to_async(own_query)()


@task
def pass_on():
    """Enqueue another one."""
    look.enqueue()


@task(backoff=lambda attempt: 0.0, max_attempts=2)
def fail(password):
    """Fail twice, and tell a secret each time."""
    raise ValueError(f"wrong password {password}")


@task
def take(name):
    """Lock a queue's row."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT FROM tasks_queue WHERE name = %s FOR UPDATE", [name])
