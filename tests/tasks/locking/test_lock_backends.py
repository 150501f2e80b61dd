"""Which backends may keep a lock: those that cannot exclude are refused, by `check` and by `lock()` itself."""

import subprocess
import sys

import pytest
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from tasks import checks
from tasks.locking import lock

BACKENDS = "django.core.cache.backends"
UNFIT = [
    ("locmem.LocMemCache", "kept in one process"),
    ("filebased.FileBasedCache", "not atomic"),
    ("dummy.DummyCache", "keeps nothing"),
    ("db.DatabaseCache", "culls entries"),
    ("memcached.PyMemcacheCache", "evicts entries"),
    ("base.BaseCache", "no release that checks the owner"),
]


def configured(settings, backend, **cache):
    settings.CACHES = {"default": {"BACKEND": f"{BACKENDS}.locmem.LocMemCache"}, "locks": cache}
    settings.ROWLOCK = {"LOCK_BACKEND": backend}


def messages():
    return checks.check_backend("default", {})


@pytest.mark.parametrize(("kind", "reason"), UNFIT)
def test_a_cache_that_cannot_exclude(settings, kind, reason):
    configured(settings, "cache:locks", BACKEND=f"{BACKENDS}.{kind}", LOCATION="x")
    [error] = messages()
    assert (error.id, reason in error.msg) == ("rowlock.E007", True)
    with pytest.raises(ImproperlyConfigured, match=reason):
        lock("x", ttl=1).acquire()


def test_what_is_said_of_locmem_is_true(settings):
    """A second process gets the lock as well."""
    settings.CACHES = {"default": {"BACKEND": f"{BACKENDS}.locmem.LocMemCache"}}
    assert caches["default"].add("lock", "me")
    assert not caches["default"].add("lock", "you")
    add = "from django.core.cache.backends.locmem import LocMemCache as C; print(C('', {}).add('lock', 'you'))"
    other = [sys.executable, "-c", f"import django; from django.conf import settings; settings.configure(); {add}"]
    assert subprocess.run(other, capture_output=True, text=True, timeout=60).stdout == "True\n"


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("redis", "needs REDIS_URL"),
        ("cache:nonesuch", "names no cache: CACHES has"),
        ("etcd", "no lock backend 'etcd'"),
    ],
)
def test_a_backend_that_is_not_there(settings, backend, reason):
    configured(settings, backend, BACKEND=f"{BACKENDS}.dummy.DummyCache")
    assert [(error.id, reason in error.msg) for error in messages()] == [("rowlock.E007", True)]
    with pytest.raises(ImproperlyConfigured, match=reason):
        lock("x", ttl=1).acquire()


def test_an_advisory_lock_through_a_proxy(settings, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "PORT", "6432")
    settings.ROWLOCK = {"LOCK_BACKEND": "advisory"}
    assert [message.id for message in messages()] == ["rowlock.W001", "rowlock.E008"]
    settings.ROWLOCK = {"LOCK_BACKEND": "lease"}
    assert [message.id for message in messages()] == ["rowlock.W001"]


def test_a_redis_cache_keeps_locks(settings, redis_url, name):
    configured(settings, "cache:locks", BACKEND=f"{BACKENDS}.redis.RedisCache", LOCATION=redis_url)
    assert messages() == []
    with lock(name, ttl=30) as held:
        assert held.fence > 10**15  # Redis's clock


@pytest.mark.parametrize("backend", ["lease", "advisory", "redis"])
def test_the_fit_ones_are_silent(settings, redis_url, backend):
    settings.ROWLOCK = {"LOCK_BACKEND": backend}
    assert messages() == []
