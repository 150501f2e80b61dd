"""Read the holders and waiters of named locks from outside."""

from collections.abc import Iterable
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from tasks import conf
from tasks.exceptions import LockUnavailable
from tasks.locking.leases import backends
from tasks.locking.leases.holder import Holder, Waiter

SHOWN = 200


class Seen(NamedTuple):
    """Locks of several backends; `problem` says why one of them could not be read."""

    holders: list[Holder]
    waiters: list[Waiter]
    problem: str = ""


def holders(names: Iterable[str] | None = None, backend: str | None = None) -> list[Holder]:
    """The locks with these names (None: the latest), each with its holder; in PostgreSQL free ones too."""
    chosen = _fit(backend)
    if chosen in backends.IN_POSTGRES:
        from tasks.locking.leases import postgres

        return postgres.holders(connection, names, limit=SHOWN)
    from tasks.locking.leases import redis

    with redis.connected(backends.redis_url(chosen)) as client:
        return redis.holders(client, names, limit=SHOWN)


def holder(name: str, backend: str | None = None) -> Holder | None:
    """The current holder of the lock; None when it is free."""
    return next((found for found in holders([name], backend) if found.is_held), None)


def waiters(backend: str | None = None) -> list[Waiter]:
    """Waiters for any lock, longest wait first."""
    chosen = _fit(backend)
    if chosen in backends.IN_POSTGRES:
        from tasks.locking.leases import postgres

        return postgres.waiters(connection, limit=SHOWN)
    from tasks.locking.leases import redis

    with redis.connected(backends.redis_url(chosen)) as client:
        return redis.waiters(client)


def everywhere(names: Iterable[str] | None = None) -> Seen:
    """The locks with these names (None: the latest) and all waiters, in PostgreSQL and, if set up, in Redis."""
    seen = Seen(holders(names, backends.LEASE), waiters(backends.LEASE))
    backend = redis_backend()
    if backend is None:
        return seen
    try:
        return Seen(seen.holders + holders(names, backend), seen.waiters + waiters(backend))
    except (LockUnavailable, ImproperlyConfigured) as error:
        return seen._replace(problem=str(error))


def redis_backend() -> str | None:
    """The Redis backend that is set up; None when only PostgreSQL keeps locks."""
    chosen = str(conf.get("LOCK_BACKEND"))
    if chosen not in backends.IN_POSTGRES:
        return chosen
    return backends.REDIS if conf.get("REDIS_URL") else None


def _fit(backend: str | None) -> str:
    chosen = str(backend or conf.get("LOCK_BACKEND"))
    backends.refuse_unfit(chosen)
    return chosen
