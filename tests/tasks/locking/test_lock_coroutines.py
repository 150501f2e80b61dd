"""`async with lock`: the event loop goes on while it waits, and no end of a coroutine leaves the lock behind.

The event loop runs in a thread, so that the test can look at the database while coroutines wait.
"""

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from tasks.exceptions import LockCycle, LockHeld, LockLost
from tasks.locking import lock
from tasks.locking.named import backends
from tests.commands import database_url
from tests.lockers import locker
from tests.waiting import wait_until

SECONDS = 60


@pytest.fixture
def start():
    """Start a coroutine on the event loop; returns its future."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop)
    left_over = asyncio.run_coroutine_threadsafe(end_all(), loop).result(timeout=SECONDS)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert left_over == 0


async def end_all():
    """Wait for what still ends; cancel what a failed test left behind, so that it holds no lock. How many were left."""
    ours = asyncio.all_tasks() - {asyncio.current_task()}
    left = (await asyncio.wait(ours, timeout=20))[1] if ours else set()
    for coroutine in left:
        coroutine.cancel()
    await asyncio.gather(*ours, return_exceptions=True)
    return len(left)


@pytest.fixture
def holder_of(backend):
    return lambda name: backends.holder(name, backend)


@pytest.fixture
def wait_until_waited_for(backend):
    def wait(name):
        def is_waited_for():
            return [waiter for waiter in backends.waiters(backend) if waiter.name == name]

        return wait_until(is_waited_for)

    return wait


async def hold(held, until=None):
    """Take the lock, keep it until the event, let go; returns its fence."""
    async with held:
        if until is not None:
            await until.wait()
        return held.fence


async def nothing():
    """Run by an event loop at once, unless it is blocked."""


def test_the_event_loop_goes_on_while_it_waits_and_the_release_wakes_it(
    backend, name, start, wait_until_waited_for, holder_of
):
    with locker(database_url(), name, ttl=30, backend=backend) as other:
        fence = other.hear()["fence"]
        waiting = start(hold(lock(name, ttl=30, wait=SECONDS, backend=backend)))
        wait_until_waited_for(name)
        for _ in range(20):
            start(nothing()).result(timeout=20)
        assert not waiting.done()
        assert other.ask("release")["event"] == "released"
        assert waiting.result(timeout=SECONDS) > fence
    assert holder_of(name) is None


def test_it_is_renewed_even_while_the_loop_is_blocked(transactional_db, name, start):
    """By the same thread as in `with lock`, whatever the backend."""
    never = threading.Event()

    async def block():
        async with lock(name, ttl=2, backend="lease") as held:
            never.wait(2.5)  # longer than the lease, without an await
            return held.is_lost

    assert start(block()).result(timeout=SECONDS) is False


def test_coroutines_of_one_loop_take_turns(backend, name, start):
    """More than the loop has threads of its own, and none takes another one for itself."""
    inside, most = [], []

    @lock(name, ttl=30, wait=SECONDS, backend=backend)
    async def body(number):
        inside.append(number)
        most.append(len(inside))
        await asyncio.sleep(0.001)
        inside.remove(number)
        return number

    async def all_of_them():
        return await asyncio.gather(*(body(number) for number in range(12)))

    assert start(all_of_them()).result(timeout=SECONDS) == list(range(12))
    assert most == [1] * 12


class TestACancel:
    def test_ends_the_wait_and_leaves_no_waiter(self, backend, name, start, wait_until_waited_for, holder_of):
        with locker(database_url(), name, ttl=30, backend=backend) as other:
            fence = other.hear()["fence"]
            waiting = start(hold(lock(name, ttl=30, wait=300, backend=backend)))
            wait_until_waited_for(name)
            waiting.cancel()

            def has_left():
                return not [waiter for waiter in backends.waiters(backend) if waiter.name == name]

            wait_until(has_left)
            assert holder_of(name).fence == fence
            other.ask("release")
        assert holder_of(name) is None

    def test_a_timeout_is_raised_as_such(self, backend, name, start):
        async def impatient():
            async with asyncio.timeout(0.2), lock(name, ttl=30, wait=300, backend=backend):
                pass

        with lock(name, ttl=30, backend=backend), pytest.raises(TimeoutError):
            start(impatient()).result(timeout=SECONDS)

    def test_releases_what_was_got_at_the_same_moment(self, backend, name, start, holder_of):
        taken, go_on = threading.Event(), threading.Event()

        class Slow(lock):
            def _acquire(self, *args):
                super()._acquire(*args)
                taken.set()
                go_on.wait(SECONDS)
                return self

        waiting = start(hold(Slow(name, ttl=300, backend=backend)))
        assert taken.wait(SECONDS)
        waiting.cancel()
        start(nothing()).result(timeout=20)  # the cancel has arrived
        assert holder_of(name)
        go_on.set()
        wait_until(lambda: holder_of(name) is None)

    def test_in_the_body_releases(self, backend, name, start, holder_of):
        async def body():
            held = lock(name, ttl=300, backend=backend)
            await hold(held, asyncio.Event())

        running = start(body())
        wait_until(lambda: holder_of(name))
        running.cancel()
        wait_until(lambda: holder_of(name) is None)
        with pytest.raises(CancelledError):
            running.result()


class TestALoss:
    @pytest.fixture
    def steal(self, backend, redis_server):
        """Free the lock, as an administrator would who believes its holder dead."""

        def steal(name):
            if backend == "redis":
                with redis_server.connect() as client:
                    client.delete(f"rowlock:{{{name}}}:lock")
            else:
                from django.db import connection

                with connection.cursor() as cursor:
                    cursor.execute("UPDATE tasks_lock SET owner = 'thief', fence = fence + 1 WHERE name = %s", [name])

        return steal

    def test_can_cancel_the_body_and_is_raised_at_the_end(self, backend, name, start, steal, holder_of):
        async def body():
            loop, lost = asyncio.get_running_loop(), asyncio.Event()

            def on_lost():
                loop.call_soon_threadsafe(lost.set)

            await hold(lock(name, ttl=0.6, backend=backend, on_lost=on_lost), lost)

        running = start(body())
        wait_until(lambda: holder_of(name))
        steal(name)
        with pytest.raises(LockLost, match="somebody else may have taken it"):
            running.result(timeout=SECONDS)

    def test_does_not_hide_the_error_of_the_body(self, backend, name, start, steal):
        inside, go_on = threading.Event(), threading.Event()

        async def body():
            async with lock(name, ttl=300, backend=backend):
                inside.set()
                await asyncio.to_thread(go_on.wait, SECONDS)
                raise KeyError

        running = start(body())
        assert inside.wait(SECONDS)
        steal(name)
        go_on.set()
        with pytest.raises(KeyError) as error:
            running.result(timeout=SECONDS)
        assert "was lost while it was held" in error.value.__notes__[0]


class TestCycles:
    def test_a_lock_that_this_coroutine_holds_itself(self, backend, name, start):
        async def twice():
            async with lock(name, ttl=30, backend=backend):
                await hold(lock(name, ttl=30, wait=SECONDS, backend=backend))

        with pytest.raises(LockCycle, match="by this very"):
            start(twice()).result(timeout=SECONDS)

    def test_another_coroutine_of_the_thread_may_wait(self, backend, name, start, wait_until_waited_for):
        over = asyncio.Event()

        async def end():
            over.set()

        holding = start(hold(lock(name, ttl=30, backend=backend), over))
        wait_until(lambda: backends.holder(name, backend))
        waiting = start(hold(lock(name, ttl=30, wait=SECONDS, backend=backend)))
        wait_until_waited_for(name)
        start(end()).result(timeout=20)
        assert holding.result(timeout=SECONDS) < waiting.result(timeout=SECONDS)

    def test_two_coroutines_that_wait_for_each_other(self, backend, name, start, wait_until_waited_for):
        a, b = f"{name} a", f"{name} b"
        go_on = asyncio.Event()

        async def both(first, second, until=None):
            async with lock(first, ttl=30, backend=backend):
                if until is not None:
                    await until.wait()
                await hold(lock(second, ttl=30, wait=SECONDS, backend=backend))

        async def set_event():
            go_on.set()

        one = start(both(a, b, go_on))
        wait_until(lambda: backends.holder(a, backend))
        other = start(both(b, a))
        wait_until_waited_for(a)
        start(set_event()).result(timeout=20)
        with pytest.raises(LockCycle, match=f"{b} → {a} → {b}"):
            one.result(timeout=SECONDS)
        other.result(timeout=SECONDS)


def test_one_try_names_the_holder(backend, name, start):
    with lock(name, ttl=30, backend=backend) as held, pytest.raises(LockHeld) as refusal:
        start(hold(lock(name, ttl=30, backend=backend))).result(timeout=SECONDS)
    assert refusal.value.holder.fence == held.fence
