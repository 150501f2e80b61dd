"""Fixtures that several folders of tests share."""

from tests.locks import backend, name, postgres_backend
from tests.redis import private_redis, redis_server, redis_url

__all__ = ["backend", "name", "postgres_backend", "private_redis", "redis_server", "redis_url"]
