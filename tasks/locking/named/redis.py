"""Named locks in Redis, by redis-py's Lock: token-checked scripts release and renew; fence and holder are added.

Redis cannot see a holder die: a dead holder's lock is free when its lease expires. A fence is the server's clock in µs.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from redis.lock import Lock

from tasks.exceptions import LockUnavailable
from tasks.locking.named.holder import Holder, Life, Waiter
from tasks.locking.named.renewal import Contender, refuse_cycle

RECHECK_SECONDS = 5.0
WAITER_SECONDS = 15  # a waiter that is silent for longer is dead
TIMEOUT_SECONDS = 5.0
WAITERS_KEY = "rowlock:waiting"  # not `rowlock:waiters`: earlier versions cannot read these entries
LOCK_KEYS = "rowlock:{*}:lock"

# Lock and fence in one step: a holder that freezes in between cannot draw a newer fence than its successor. The clock
# keeps fences growing if Redis lost its memory, the counter if the clock went back. A caller whose first answer got
# lost finds its own token.
ACQUIRE = """
if redis.call('get', KEYS[1]) == ARGV[1] then
    return redis.call('get', KEYS[2])
end
if not redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    return false
end
local now = redis.call('time')
local fence = math.max(now[1] * 1000000 + now[2], (redis.call('get', KEYS[2]) or 0) + 1)
redis.call('set', KEYS[2], string.format('%.0f', fence))
return string.format('%.0f', fence)
"""

# A new waiter sees all earlier ones in one step, so that only the last of a cycle finds it.
ENTER = """
local time = redis.call('time')
local now = string.format('%d.%06d', time[1], time[2])
if ARGV[1] ~= '' then
    redis.call('hset', KEYS[1], ARGV[1], now .. ' ' .. ARGV[2])
end
local answer = {now}
local all = redis.call('hgetall', KEYS[1])
for i = 1, #all, 2 do
    if tonumber(string.match(all[i + 1], '^[%d.]+')) < now - ARGV[3] then
        redis.call('hdel', KEYS[1], all[i])
    else
        answer[#answer + 1] = all[i + 1]
    end
end
return answer
"""

FREE = """
if redis.call('get', KEYS[2]) ~= ARGV[1] or redis.call('del', KEYS[1]) == 0 then
    return 0
end
redis.call('publish', KEYS[1] .. ':released', '')
return 1
"""


class FencedLock(Lock):
    """redis-py's Lock, with a fence drawn when it is taken and an announcement when it is released."""

    # redis-py registers scripts once for each class: without these, our subclass would use the base class's scripts.
    lua_release = lua_extend = lua_reacquire = None
    LUA_RELEASE_SCRIPT = """
        if redis.call('get', KEYS[1]) ~= ARGV[1] then
            return 0
        end
        redis.call('del', KEYS[1])
        redis.call('publish', KEYS[1] .. ':released', '')
        return 1
    """

    def __init__(self, client: "redis.Redis", name: str, ttl: float) -> None:
        super().__init__(client, lock_key(name), timeout=ttl, blocking=False, thread_local=False)
        self.fence: int | None = None
        self._ttl_ms = max(1, int(ttl * 1000))
        self._fence_key = fence_key(name)
        self._acquire = client.register_script(ACQUIRE)

    def do_acquire(self, token: Any) -> bool:
        """Called by redis-py's `acquire`."""
        fence = self._acquire(keys=[self.name, self._fence_key], args=[token, self._ttl_ms])
        self.fence = None if fence is None else int(fence)
        return fence is not None


def lock_key(name: str) -> str:
    """The key of a lock; the braces put all keys of one name on one node of a cluster."""
    return f"rowlock:{{{name}}}:lock"


def fence_key(name: str) -> str:
    return f"rowlock:{{{name}}}:fence"


def connect(url: str) -> "redis.Redis":
    """A client with its own pool; every call times out after TIMEOUT_SECONDS."""
    return redis.Redis.from_url(
        url, decode_responses=True, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
    )


@contextmanager
def connected(url: str) -> "Iterator[redis.Redis]":
    """A client for one block; Redis errors are raised as LockUnavailable."""
    with explained(), connect(url) as client:
        yield client


@contextmanager
def explained() -> Iterator[None]:
    """A block in which Redis errors become LockUnavailable."""
    try:
        yield
    except redis.RedisError as error:
        raise LockUnavailable(
            f"Redis, which keeps the lock, did not answer: {error}. Is REDIS_URL right and the server running? "
            "Then try again."
        ) from error


def holders(client: "redis.Redis", names: Iterable[str] | None = None, *, limit: int = 200) -> list[Holder]:
    """The held locks among these names (None: among all, at most `limit`)."""
    if names is None:
        keys = (key for key, _ in zip(client.scan_iter(match=LOCK_KEYS, count=1000), range(limit), strict=False))
        names = sorted({key[len("rowlock:{") : -len("}:lock")] for key in keys})
    return [holder for name in names if (holder := _holder(client, name))]


def free(client: "redis.Redis", name: str, fence: int) -> bool:
    """Take the lock from its holder if it still has this fence."""
    return bool(client.eval(FREE, 2, lock_key(name), fence_key(name), str(fence)))


def waiters(client: "redis.Redis", entering: tuple[str, dict[str, Any]] | None = None) -> list[Waiter]:
    """All waiters, longest wait first; `entering` (owner, its data) is added or refreshed first."""
    owner, about = entering or ("", {})
    now, *found = client.eval(ENTER, 1, WAITERS_KEY, owner, json.dumps(about), WAITER_SECONDS)
    waiting = [_waiter(entry, float(now)) for entry in found]
    return sorted(waiting, key=lambda waiter: -(waiter.waiting_seconds or 0))


class RedisContender(Contender):
    """A key with a time to live, on its own client."""

    backend = "redis"

    def __init__(self, name: str, ttl: float, url: str) -> None:
        super().__init__(name, ttl)
        self.client = connect(url)
        self._lock = FencedLock(self.client, name, ttl)
        self._subscription = self.client.pubsub(ignore_subscribe_messages=True)
        self._holds: list[int] = []
        self._waiting_since = 0.0

    def explained(self) -> AbstractContextManager[None]:
        return explained()

    def try_acquire(self) -> int | None:
        about = {"owner": self.owner, "hostname": self.hostname, "pid": self.pid, "ttl": self.ttl}
        self._lock.acquire(token=json.dumps(about))
        self.fence = self._lock.fence
        return self.fence

    def holder(self) -> Holder | None:
        return _holder(self.client, self.name)

    def start_waiting(self, holds: Collection[int]) -> None:
        self._holds = list(holds)
        self._waiting_since = time.monotonic()
        self._subscription.subscribe(f"{lock_key(self.name)}:released")
        waiting = self._enter()
        held = holders(self.client, {self.name, *(waiter.name for waiter in waiting)})
        refuse_cycle(self.name, holds, held, [waiter for waiter in waiting if waiter.owner != self.owner])

    def wait(self, seconds: float) -> None:
        self._enter()
        left_ms = self.client.pttl(lock_key(self.name))
        if left_ms != -2:  # no such key: it is free
            left = RECHECK_SECONDS if left_ms < 0 else left_ms / 1000
            self._subscription.get_message(timeout=min(seconds, RECHECK_SECONDS, left + 0.001))

    def stop_waiting(self) -> None:
        self.client.hdel(WAITERS_KEY, self.owner)
        self._subscription.close()

    def renew(self) -> bool:
        return self._is_ours(self._lock.reacquire)

    def release(self) -> bool:
        return self._is_ours(self._lock.release)

    def close(self) -> None:
        self.client.close()

    def _enter(self) -> list[Waiter]:
        waited = time.monotonic() - self._waiting_since
        about = {"name": self.name, "owner": self.owner, "hostname": self.hostname, "pid": self.pid}
        return waiters(self.client, (self.owner, {**about, "holds": self._holds, "waited": waited}))

    def _is_ours(self, operation: Callable[[], object]) -> bool:
        try:
            operation()
        except redis.exceptions.LockError:
            return False
        return True


def _holder(client: "redis.Redis", name: str) -> Holder | None:
    pipeline = client.pipeline(transaction=True)
    pipeline.get(lock_key(name))
    pipeline.get(fence_key(name))
    pipeline.pttl(lock_key(name))
    pipeline.time()
    token, fence, left_ms, (seconds, micros) = pipeline.execute()
    if token is None:
        return None
    now = datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=micros)
    about = _about(token)
    left = left_ms / 1000 if left_ms >= 0 else None
    silent = about["ttl"] - left if left is not None and "ttl" in about else None
    acquired_at = datetime.fromtimestamp(int(fence) / 1_000_000, UTC) if fence else None
    return Holder(
        name,
        RedisContender.backend,
        Life.UNSEEN,
        owner=about["owner"],
        fence=int(fence) if fence else None,
        hostname=about.get("hostname", ""),
        pid=about.get("pid"),
        acquired_at=acquired_at,
        renewed_at=None if silent is None else now - timedelta(seconds=silent),
        expires_at=None if left is None else now + timedelta(seconds=left),
        held_seconds=(now - acquired_at).total_seconds() if acquired_at else None,
        silent_seconds=silent,
        seconds_left=left,
    )


def _about(token: str) -> dict[str, Any]:
    """The owner's data from the token; the token of another program becomes the owner's name."""
    try:
        about = json.loads(token)
    except ValueError:
        about = None
    return about if isinstance(about, dict) and "owner" in about else {"owner": token}


def _waiter(entry: str, now: float) -> Waiter:
    seen, _, text = entry.partition(" ")
    about = json.loads(text)
    waited = about.pop("waited") + now - float(seen)
    return Waiter(**{**about, "holds": frozenset(about["holds"])}, waiting_seconds=waited)
