"""The second thread of a worker process: while a task takes long, it flushes, and keeps the session and the lease."""

import contextlib
import logging
import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable

import psycopg

from tasks import conf
from tasks.exceptions import Convicted
from tasks.queue import presence
from tasks.worker.complete import FLUSH_SECONDS, Outbox
from tasks.worker.leader import Lookout
from tasks.worker.session import Session
from tasks.worker.shared_state import SharedState

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
# A lookout that is at work for longer passes it on. Not at once: most tasks are over by then.
LOOKOUT_SECONDS = 0.01
LEAVE_SECONDS = 3.0


class Companion:
    """Works beside the main thread of one worker process, on the same session, while a batch runs.

    `lifeline` closes when the supervisor dies; `stop` makes the main thread claim no more; it says whether that is new.
    """

    def __init__(
        self,
        state: SharedState,
        session: Session,
        outbox: Outbox,
        lookout: Lookout,
        *,
        lifeline: int,
        stop: Callable[[], bool],
    ) -> None:
        self.worker_id = session.worker_id
        self.state = state
        self.session = session
        self.outbox = outbox
        self.lookout = lookout
        self.lifeline = lifeline
        self.stop = stop
        self.lease_seconds: float = conf.get("LEASE_SECONDS")
        self.conviction: Convicted | None = None
        self._busy_since: float | None = None
        self._is_done = threading.Event()
        self._is_running_batch = threading.Event()
        self._thread = threading.Thread(target=self._accompany, name="companion", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Let the thread end, and wait a moment for it."""
        self._is_done.set()
        self._is_running_batch.set()
        self._thread.join(timeout=LEAVE_SECONDS)

    def begin_batch(self) -> None:
        """From now on the main thread runs tasks."""
        if self._busy_since is None:
            self._busy_since = time.monotonic()
        self._is_running_batch.set()

    def end_batch(self) -> None:
        """The main thread claims again. Under the lock: its claim sees what this thread has read of the session."""
        with self.session.lock:
            self._is_running_batch.clear()

    def rest(self) -> None:
        """The main thread has found nothing to do: a lookout stays one."""
        with self.session.lock:
            self._busy_since = None

    def flush(self) -> None:
        """Write what has ended; what cannot be written now stays in the outbox."""
        try:
            self.session.run(lambda connection: self.outbox.flush(connection)())
        except psycopg.Error as error:
            logger.warning("the outcome of %s tasks could not be written yet: %s", len(self.outbox), error)

    def keep_lease(self, connection: psycopg.Connection) -> None:
        """Renew the lease when the supervisor is late with it. Raises Convicted."""
        if self.state.is_lease_fresh(self.lease_seconds / 2):
            return
        if not presence.beat(connection, [self.worker_id]):
            raise Convicted(f"Worker {self.worker_id} was declared dead: it was silent for longer than its lease.")
        self.state.renew_lease()

    def _accompany(self) -> None:
        while not self._is_done.is_set():
            self._is_running_batch.wait(timeout=LOOK_SECONDS)
            self._watch_lifeline()
            pause = LOOKOUT_SECONDS if self.state.is_leader else FLUSH_SECONDS
            if self._is_running_batch.is_set() and not self._is_done.wait(pause):
                try:
                    self._keep_session()
                except Convicted as error:
                    self.conviction = error
                    self.stop()
                except psycopg.Error as error:
                    logger.warning("worker %s, while a task runs: %s", self.worker_id, str(error).strip())

    def _keep_session(self) -> None:
        if self.session.has_news():
            with self.session.lock:
                if self._is_running_batch.is_set():
                    self.session.drain()
        if not self.session.is_settled and not self.session.retry_in():
            self.session.ensure()
        self.pass_on_after_long_work()
        if self.outbox.is_due():
            self.flush()
        if not self.state.is_lease_fresh(self.lease_seconds / 2):
            self.session.run(self.keep_lease)

    def pass_on(self) -> None:
        """Let somebody else be the lookout."""
        with self.session.lock:
            if self.session.is_hearing:
                self.session.hear_no_more()
            self.lookout.pass_on(self.state)

    def pass_on_after_long_work(self) -> None:
        """The same, when a lookout is at work for long already, or was one and hears still."""
        with self.session.lock:
            busy_since = self._busy_since
            is_long = busy_since is not None and time.monotonic() - busy_since >= LOOKOUT_SECONDS
            if is_long and (self.state.is_leader or self.session.is_hearing):
                self.pass_on()

    def _watch_lifeline(self) -> None:
        """Without the supervisor finish and go, and end at a task's timeout by ourselves."""
        if not select.select([self.lifeline], [], [], 0)[0]:
            return
        if self.stop():
            logger.warning("worker %s lost its supervisor: it finishes what runs and ends", self.worker_id)
        if self.state.is_overdue():
            logger.warning("worker %s ends itself: its task is past its timeout", self.worker_id)
            os.kill(os.getpid(), signal.SIGKILL)


POLL_SECONDS = 1.0  # of the lookout
SLEEP_SECONDS = 5.0  # of the others, should the lookout be of no use
SOON_SECONDS = 0.03


class Idleness:
    """The pauses of one worker. `wakes` is readable once a signal came."""

    def __init__(
        self, state: SharedState, session: Session, lookout: Lookout, companion: Companion, *, wakes: int
    ) -> None:
        self.state = state
        self.session = session
        self.lookout = lookout
        self.companion = companion
        self.wakes = wakes
        self.was_woken = False  # by another worker, and has not looked for a task since

    def spend(self, is_stopping: Callable[[], bool]) -> None:
        """Nothing was due. Be the lookout, or sleep until it is our turn; poll behind both. Raises psycopg.Error."""
        self.was_woken = False
        self.companion.rest()  # first: from now on what we are is not passed on behind our back
        spread = random.uniform(0.8, 1.2)  # noqa: S311  of the workers' polls
        is_lookout = self.lookout.take(self.state)
        seconds = self._look_out(spread * POLL_SECONDS) if is_lookout else spread * SLEEP_SECONDS
        if not self.session.is_settled:
            seconds = min(seconds, SOON_SECONDS)  # presence is not held yet
        if seconds and not is_stopping():
            self.state.busy = 0
            if not is_lookout:
                self._sleep(seconds)
            elif self.session.wait(seconds, self.wakes):
                drain(self.wakes)

    def end(self, *, got_several: bool) -> None:
        """There is a task. There may be more: who was woken found one, or got several and as many as it wanted."""
        if self.was_woken or (self.state.is_leader and got_several):
            self.companion.pass_on()
            self.lookout.call()
        self.was_woken = False

    def _look_out(self, seconds: float) -> float:
        """Hear notifications and be on duty. For how long to wait for one, of `seconds`; 0: look once more first."""
        if not self.session.is_hearing:
            self.session.hear()
            self.session.take_duty()
            return 0.0
        if self.session.is_on_duty:
            return seconds
        duty = self.session.take_duty()
        return {"mine": 0.0, "others": seconds}.get(duty, SOON_SECONDS)

    def _sleep(self, seconds: float) -> None:
        """Until the lookout has passed it on, a signal has come, or the session has ended."""
        if self.session.is_hearing:  # the supervisor has made somebody else the lookout
            self.session.hear_no_more()
        self.was_woken = self.lookout.sleep(self.state, seconds, [*self.session.descriptors(), self.wakes])
        self.session.drain()
        drain(self.wakes)


def drain(descriptor: int) -> None:
    """Read all that is in a pipe."""
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 1024):
            pass
