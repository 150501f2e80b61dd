"""Looking at named locks from outside: who holds them, who waits for them."""

from collections.abc import Iterable

from django.db import connection

from tasks import conf
from tasks.locking.leases import backends
from tasks.locking.leases.holder import Holder, Waiter

SHOWN = 200


def holders(names: Iterable[str] | None = None, backend: str | None = None) -> list[Holder]:
    """The locks with these names (None: the latest), each with its holder; in PostgreSQL also the free ones."""
    chosen = _checked(backend)
    if chosen in backends.IN_POSTGRES:
        from tasks.locking.leases import postgres

        return postgres.holders(connection, names, limit=SHOWN)
    from tasks.locking.leases import redis

    with redis.connected(backends.redis_url(chosen)) as client:
        return redis.holders(client, names, limit=SHOWN)


def holder(name: str, backend: str | None = None) -> Holder | None:
    """Who holds the lock now; None when nobody does."""
    return next((found for found in holders([name], backend) if found.is_held), None)


def waiters(backend: str | None = None) -> list[Waiter]:
    """Who waits for any lock, longest first."""
    chosen = _checked(backend)
    if chosen in backends.IN_POSTGRES:
        from tasks.locking.leases import postgres

        return postgres.waiters(connection, limit=SHOWN)
    from tasks.locking.leases import redis

    with redis.connected(backends.redis_url(chosen)) as client:
        return redis.waiters(client)


def _checked(backend: str | None) -> str:
    chosen = str(backend or conf.get("LOCK_BACKEND"))
    backends.refuse_unfit(chosen)
    return chosen
