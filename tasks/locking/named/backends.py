"""The backends of named locks: which can keep a lock, and which locks each holds."""

from collections.abc import Iterable
from typing import NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.utils.module_loading import import_string

from tasks import conf
from tasks.exceptions import LockUnavailable
from tasks.locking.named import postgres
from tasks.locking.named.holder import Holder, Waiter
from tasks.locking.named.renewal import Contender

LEASE, ADVISORY, REDIS = "lease", "advisory", "redis"
IN_POSTGRES = (LEASE, ADVISORY)
CACHE = "cache:"
SHOWN = 200  # locks, or waiters

# Why a cache cannot keep a lock, by the Django class of its backend. Measured: 196 of 200 rounds had two winners in the
# file cache; a live lock vanished from the database cache after 310 entries.
CANNOT_EXCLUDE = {
    "django.core.cache.backends.locmem.LocMemCache": "it is kept in one process: every other process gets the lock too",
    "django.core.cache.backends.filebased.FileBasedCache": "its add() is not atomic: two callers can both get the lock",
    "django.core.cache.backends.dummy.DummyCache": "it keeps nothing: everybody gets the lock",
    "django.core.cache.backends.db.DatabaseCache": "it culls entries at a limit, and a live lock can be among them",
    "django.core.cache.backends.memcached.BaseMemcachedCache": "it evicts entries, a release may free another's lock",
}
REDIS_CACHE = "django.core.cache.backends.redis.RedisCache"


def make(backend: str | None, name: str, ttl: float) -> Contender:
    """Create a contender for the lock `name`, `ttl` in seconds, at this backend (None: the setting LOCK_BACKEND).

    Raises ImproperlyConfigured for a backend that does not exist, is not set up, or cannot exclude.
    """
    chosen = _fit(backend)
    if chosen in IN_POSTGRES:
        return (postgres.LeaseContender if chosen == LEASE else postgres.AdvisoryContender)(name, ttl)
    from tasks.locking.named.redis import RedisContender

    return RedisContender(name, ttl, redis_url(chosen))


def _fit(backend: str | None) -> str:
    """The backend, or that of the setting. Raises ImproperlyConfigured if it cannot keep a lock."""
    chosen = str(backend or conf.get("LOCK_BACKEND"))
    if problem := problem_of(chosen):
        raise ImproperlyConfigured(problem)
    return chosen


def problem_of(backend: str) -> str | None:
    """The reason why this backend cannot keep a lock, or None."""
    if backend in IN_POSTGRES:
        return None
    if backend == REDIS:
        return None if conf.get("REDIS_URL") else "The lock backend 'redis' needs REDIS_URL, and it is not set."
    if not backend.startswith(CACHE):
        return f"There is no lock backend {backend!r}: choose 'lease', 'advisory', 'redis' or 'cache:' with an alias."
    alias = backend.removeprefix(CACHE)
    if alias not in settings.CACHES:
        return f"The lock backend {backend!r} names no cache: CACHES has {', '.join(sorted(settings.CACHES))}."
    path = settings.CACHES[alias]["BACKEND"]
    kind = import_string(path)
    if issubclass(kind, import_string(REDIS_CACHE)):
        return None
    reasons = (reason for unfit, reason in CANNOT_EXCLUDE.items() if issubclass(kind, import_string(unfit)))
    reason = next(reasons, "it has no release that checks the owner")
    return f"The cache {alias!r} ({path}) cannot keep a lock: {reason}. Use 'lease' or 'redis'."


def redis_url(backend: str) -> str:
    """URL of this backend's Redis."""
    if backend == REDIS:
        return str(conf.get("REDIS_URL"))
    location = settings.CACHES[backend.removeprefix(CACHE)]["LOCATION"]
    return str(location if isinstance(location, str) else location[0])


class Seen(NamedTuple):
    """Locks of several backends; `problem` says why one of them could not be read."""

    holders: list[Holder]
    waiters: list[Waiter]
    problem: str = ""


def holders(names: Iterable[str] | None = None, backend: str | None = None) -> list[Holder]:
    """The locks with these names (None: the latest), each with its holder; in PostgreSQL free ones too."""
    chosen = _fit(backend)
    if chosen in IN_POSTGRES:
        return postgres.holders(connection, names, limit=SHOWN)
    from tasks.locking.named import redis

    with redis.connected(redis_url(chosen)) as client:
        return redis.holders(client, names, limit=SHOWN)


def holder(name: str, backend: str | None = None) -> Holder | None:
    """The current holder of the lock; None when it is free."""
    return next((found for found in holders([name], backend) if found.is_held), None)


def waiters(backend: str | None = None) -> list[Waiter]:
    """Waiters for any lock, longest wait first."""
    chosen = _fit(backend)
    if chosen in IN_POSTGRES:
        return postgres.waiters(connection, limit=SHOWN)
    from tasks.locking.named import redis

    with redis.connected(redis_url(chosen)) as client:
        return redis.waiters(client)


def everywhere(names: Iterable[str] | None = None) -> Seen:
    """The locks with these names (None: the latest) and all waiters, in PostgreSQL and, if set up, in Redis."""
    in_postgres = Seen(holders(names, LEASE), waiters(LEASE))
    backend = redis_backend()
    if backend is None:
        return in_postgres
    try:
        return Seen(in_postgres.holders + holders(names, backend), in_postgres.waiters + waiters(backend))
    except (LockUnavailable, ImproperlyConfigured) as error:
        return in_postgres._replace(problem=str(error))


def redis_backend() -> str | None:
    """The Redis backend that is set up; None when only PostgreSQL keeps locks."""
    chosen = str(conf.get("LOCK_BACKEND"))
    if chosen not in IN_POSTGRES:
        return chosen
    return REDIS if conf.get("REDIS_URL") else None
