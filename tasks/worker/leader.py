"""Leadership among a supervisor's idle workers: the one that holds the token, a byte in a pipe, waits for new tasks.

Only the leader hears notifications and polls for all. Were fifty idle workers woken by each new task, fifty would ask
the database for it. The others sleep until the leader goes to work and passes the token on; the kernel wakes one of
them, which costs the database nothing. A worker that finds a task as soon as it is woken calls two more, so that many
tasks that come at once find many workers in few steps.

One of the leaders of all supervisors is on duty. It claims a new task at once, and tells the others if it finds none.
These look a moment later, in case the one on duty is frozen; so not every leader claims for each task. The duty goes to
the next holder of the token; leaders of other supervisors are told only if nobody takes that.
"""

import contextlib
import ctypes
import mmap
import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tasks.queue import wakeup
from tasks.worker.session import Session
from tasks.worker.shared_state import SharedState

# A leader that works for longer hands over. Not at once: most tasks are over by then.
HAND_OVER_SECONDS = 0.01
POLL_SECONDS = 1.0  # of the leader
SLEEP_SECONDS = 30.0  # of the others
SILENT_SECONDS = 5.0  # a leader that has not looked for so long has failed: the others look themselves
SOON_SECONDS = 0.03
# While an enqueuer commits nobody can take the duty. Most are done at once: the first look comes so soon, the next ones
# after twice as long each, up to SOON_SECONDS.
FIRST_SECONDS = 0.002
# A leader that is not on duty leaves a new task for so long, at random, to the one that is.
LEAVE_SECONDS = 0.25, 0.5
# After a call to all leaders each looks at once; each look in vain makes its next ones later, at random.
LATER_SECONDS, LATEST_SECONDS = 0.01, 0.25
# The token itself. The second one says that its last holder left the duty, and that nobody has been told.
TOKEN, TOKEN_WITH_DUTY = b"x", b"d"


@dataclass
class Delay:
    """How long a leader waits at most after a call to all, at random, so that few look at once."""

    seconds: float = 0.0

    def drawn(self) -> float:
        return random.uniform(0, self.seconds)  # noqa: S311

    def note(self, *, was_right: bool) -> None:
        """Note whether there was anything to do."""
        self.seconds = 0.0 if was_right else min(self.seconds + LATER_SECONDS, LATEST_SECONDS)


class LeaderToken:
    """The token. The supervisor makes it before it forks, and puts it back when its holder died, is frozen, or is at
    work for long without having passed it on. A second token, should one arise, costs the queries of a second leader.
    """

    def __init__(self) -> None:
        self._token, self._put_token = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._calls, self._put_call = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._looked_ns = ctypes.c_int64.from_buffer(mmap.mmap(-1, 8))  # when the leader did, by `time.monotonic_ns()`
        os.write(self._put_token, TOKEN)

    @property
    def is_free(self) -> bool:
        """True if nobody holds it: all workers run tasks."""
        return _is_readable(self._token)

    @property
    def is_leader_silent(self) -> bool:
        """True if no leader has looked for tasks for SILENT_SECONDS."""
        return time.monotonic_ns() - self._looked_ns.value > SILENT_SECONDS * 1e9

    def note_look(self) -> None:
        """Note that the leader has looked for tasks just now."""
        self._looked_ns.value = time.monotonic_ns()

    def take(self, state: SharedState) -> bool:
        """Take the token if it is free. True if this worker is the leader now."""
        if not state.is_leader:
            state.is_leader = 1  # first: if the worker dies in between, the token is put back, and not lost
            found = _read_one(self._token)
            state.is_leader, state.has_left_duty = int(bool(found)), int(found == TOKEN_WITH_DUTY)
        return bool(state.is_leader)

    def pass_on(self, state: SharedState) -> None:
        """End this worker's leadership; one of those that sleep is woken to lead."""
        if state.is_leader:
            state.is_leader = 0
            if not self.is_free:
                os.write(self._put_token, TOKEN_WITH_DUTY if state.has_left_duty else TOKEN)

    def call(self) -> None:
        """Wake two of those that sleep; each tries to claim once."""
        if not _is_readable(self._calls):
            for _ in range(2):  # each write wakes one
                os.write(self._put_call, b"x")

    def sleep(
        self, state: SharedState, seconds: float, others: Iterable[int], is_due: Callable[[], bool] = lambda: False
    ) -> bool:
        """Wait for the token, for a call, for another readable descriptor, for a silent leader, or for `seconds`.

        `is_due`: what else ends the sleep, asked every SILENT_SECONDS.

        True if there may be a task now: this worker was called, or is the leader.
        """
        with select.epoll() as waiting:
            for ours in (self._token, self._calls):
                waiting.register(ours, select.EPOLLIN | select.EPOLLEXCLUSIVE)  # of those who sleep one is woken
            for descriptor in others:
                waiting.register(descriptor, select.EPOLLIN)
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                if waiting.poll(min(left, SILENT_SECONDS)) or self.is_leader_silent or is_due():
                    break
        is_called = bool(_read_one(self._calls))
        return self.take(state) or is_called


class Leadership:
    """One worker's part in it: it leads or sleeps while it is idle, and hands over when it works.

    Both threads of the worker process use it. `wakes` is readable once a signal came.
    """

    def __init__(self, session: Session, token: LeaderToken, *, wakes: int) -> None:
        self.state = session.state
        self.session = session
        self.token = token
        self.wakes = wakes
        self.was_called = False  # by another worker, and has not tried to claim since
        self._lock = threading.Lock()
        self._busy_since: float | None = None
        self._offers_duty = False  # to the next holder of the token, and has told nobody
        self._delay = Delay()
        self._retry_seconds = FIRST_SECONDS
        self._has_heard_all = self._has_heard_new = False  # a call to all, a new task, since the last claim

    def begin_work(self) -> None:
        """Note that the worker runs tasks from now on."""
        if self._busy_since is None:
            self._busy_since = time.monotonic()

    def rest(self) -> None:
        """Note that the worker has found nothing to do: a leader stays one."""
        with self._lock:
            self._busy_since = None
            self._offers_duty = False  # it takes the token itself if nobody has

    def wait_for_work(
        self, is_stopping: Callable[[], bool], *, look_in: float = POLL_SECONDS, runs_tasks: bool = False
    ) -> None:
        """Lead, or sleep until it is this worker's turn; poll in both cases. Raises psycopg.Error.

        `look_in`: seconds until a limit may allow more; only the leader looks then. `runs_tasks`: the worker has room
        for more beside those that run.
        """
        self.was_called = False
        self.rest()  # first: from now on the other thread hands nothing over
        spread = random.uniform(0.8, 1.2)  # noqa: S311  of the workers' polls
        is_leader = self.token.take(self.state)
        if is_leader:
            self.token.note_look()
        seconds = self._lead(min(spread * POLL_SECONDS, look_in)) if is_leader else spread * SLEEP_SECONDS
        if not self.session.is_ready:
            seconds = min(seconds, SOON_SECONDS)  # presence is not held yet
        if not seconds or is_stopping():
            return
        self.state.busy = int(runs_tasks)
        if is_leader:
            self._hear(seconds)
            return
        if self.session.is_listening:  # the supervisor has passed this worker's token on
            with self._lock:
                self._hand_over()
        descriptors = [*self.session.descriptors(), self.wakes]
        self.was_called = self.token.sleep(self.state, seconds, descriptors, self._must_renew_lease)
        self.session.drain()
        drain(self.wakes)

    def _must_renew_lease(self) -> bool:
        """True if the supervisor is late with it: the next look does it."""
        return not self.state.is_lease_fresh(self.session.lease_seconds / 2)

    def found_work(self, *, got_several: bool) -> None:
        """Hand over and call others if there may be more: after a call, or when the leader got all it asked for."""
        if self.was_called or (self.state.is_leader and got_several):
            with self._lock:
                self._hand_over(tells_all=True)
            self.token.call()
        self.was_called = False
        self._note_heard(was_right=True)

    def step_aside(self) -> None:
        """Hand over, because this worker's next claim takes long."""
        with self._lock:
            self._hand_over()

    @property
    def is_handing_over(self) -> bool:
        """True if `hand_over_after_long_work` should be called soon."""
        return bool(self.state.is_leader) or self._offers_duty

    def hand_over_after_long_work(self) -> None:
        """Hand over after 10 ms of work; offer the duty to all leaders if nobody has the token 10 ms later."""
        with self._lock:
            if self._offers_duty:
                self._offers_duty = False
                if self.token.is_free:
                    self.session.run(wakeup.offer_duty)
            is_long = self._busy_since is not None and time.monotonic() - self._busy_since >= HAND_OVER_SECONDS
            if is_long:
                self._hand_over()

    def _hand_over(self, *, tells_all: bool = False) -> None:
        has_left_duty = self.session.is_listening and self.session.stop_listening()
        if self.state.is_leader:
            self.state.has_left_duty |= has_left_duty
            self._offers_duty = bool(self.state.has_left_duty)
            self.token.pass_on(self.state)
        else:
            tells_all = True
        if has_left_duty and tells_all:
            self._offers_duty = False
            self.session.run(wakeup.offer_duty)

    def _lead(self, seconds: float) -> float:
        """Listen and be on duty. Returns how long to wait for a notification; 0: try to claim first."""
        if not self.session.is_listening:
            self.session.listen()
            self._take_duty()
            return 0.0
        if self.session.is_on_duty:
            if self._has_heard_new:
                self.session.run(wakeup.announce)
            self._note_heard(was_right=True)
            return seconds
        duty = self._take_duty()
        self._note_heard(was_right=duty == "mine")
        if duty != "nobody":
            self._retry_seconds = FIRST_SECONDS
            return 0.0 if duty == "mine" else seconds
        retry_seconds, self._retry_seconds = self._retry_seconds, min(2 * self._retry_seconds, SOON_SECONDS)
        return retry_seconds

    def _take_duty(self) -> str:
        duty = self.session.take_duty()
        self.state.has_left_duty &= duty == "nobody"
        return duty

    def _hear(self, seconds: float) -> None:
        """Wait until this leader should look: some time after a notification, at a signal, or after `seconds`."""
        until = time.monotonic() + seconds
        while True:
            payloads, is_signalled = self.session.wait(until - time.monotonic(), self.wakes)
            if is_signalled:
                drain(self.wakes)
            if payloads:
                until = min(until, time.monotonic() + self._note(payloads))
            if is_signalled or self.session.is_on_duty or not payloads or time.monotonic() >= until:
                return

    def _note(self, payloads: set[str]) -> float:
        """Note what was heard; returns how long to wait before looking, if not on duty."""
        self._has_heard_new = self._has_heard_new or wakeup.NEW_TASK in payloads
        if payloads == {wakeup.NEW_TASK}:
            return random.uniform(*LEAVE_SECONDS)  # noqa: S311
        self._has_heard_all = True
        return self._delay.drawn()

    def _note_heard(self, *, was_right: bool) -> None:
        if self._has_heard_all:
            self._delay.note(was_right=was_right)
        self._has_heard_all = self._has_heard_new = False


def drain(descriptor: int) -> None:
    """Read all that is in a pipe."""
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 1024):
            pass


def _is_readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def _read_one(descriptor: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(descriptor, 1)
    return b""
