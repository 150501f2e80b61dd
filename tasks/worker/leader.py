"""Who of a supervisor's idle workers looks out for new tasks: the one that holds a token, a byte in a pipe.

Only the lookout hears notifications and polls for all. Were fifty idle workers woken by each new task, fifty would ask
the database for it. The others sleep until the lookout goes to work and passes the token on; the kernel wakes one of
them, which costs the database nothing. Who finds a task as soon as it is woken calls two more, so that many tasks that
come at once find many workers in few steps.
"""

import contextlib
import os
import select
from collections.abc import Iterable

from tasks.worker.shared_state import SharedState

CALLED = 2


class Lookout:
    """The token. Made by the supervisor before it forks, and put back when its holder died, is frozen, or is at work
    for long without having passed it on. A second token, should one arise, costs the queries of a second lookout.
    """

    def __init__(self) -> None:
        self._token, self._put_token = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._calls, self._put_call = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.write(self._put_token, b"x")

    def take(self, state: SharedState) -> bool:
        """Whether this worker is the lookout now."""
        if not state.is_leader:
            state.is_leader = 1  # first: the token of who dies in between is put back, and not lost
            if not _read_one(self._token):
                state.is_leader = 0
        return bool(state.is_leader)

    def pass_on(self, state: SharedState) -> None:
        """This worker is the lookout no more; one of those that sleep is woken to be."""
        if state.is_leader:
            state.is_leader = 0
            if not _is_readable(self._token):
                os.write(self._put_token, b"x")

    def call(self) -> None:
        """Wake some of those that sleep, each of whom looks once."""
        if not _is_readable(self._calls):
            for _ in range(CALLED):  # each write wakes one
                os.write(self._put_call, b"x")

    def sleep(self, state: SharedState, seconds: float, others: Iterable[int]) -> bool:
        """Wait for the token, for a call, for another readable descriptor, or for `seconds`.

        Whether there may be a task now: we were called, or are the lookout.
        """
        with select.epoll() as waiting:
            for ours in (self._token, self._calls):
                waiting.register(ours, select.EPOLLIN | select.EPOLLEXCLUSIVE)  # of those who sleep one is woken
            for descriptor in others:
                waiting.register(descriptor, select.EPOLLIN)
            waiting.poll(max(0.0, seconds))
        is_called = _read_one(self._calls)
        return self.take(state) or is_called


def _is_readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def _read_one(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        return bool(os.read(descriptor, 1))
    return False
