"""The second thread of a worker process: while a task takes long, it flushes, and keeps the session and the lease."""

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable

import psycopg

from tasks import conf, presence
from tasks.exceptions import Convicted
from tasks.worker.lookout import Lookout
from tasks.worker.outbox import FLUSH_SECONDS, Outbox
from tasks.worker.page import LOOKOUT, Page
from tasks.worker.session import Session

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
        self, page: Page, session: Session, outbox: Outbox, lookout: Lookout, *, lifeline: int, stop: Callable[[], bool]
    ) -> None:
        self.worker_id = session.worker_id
        self.page = page
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
        if self.page.is_lease_fresh(self.lease_seconds / 2):
            return
        if not presence.beat(connection, [self.worker_id]):
            raise Convicted(f"Worker {self.worker_id} was declared dead: it was silent for longer than its lease.")
        self.page.beat()

    def _accompany(self) -> None:
        while not self._is_done.is_set():
            self._is_running_batch.wait(timeout=LOOK_SECONDS)
            self._watch_lifeline()
            pause = LOOKOUT_SECONDS if self.page.words[LOOKOUT] else FLUSH_SECONDS
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
        if not self.page.is_lease_fresh(self.lease_seconds / 2):
            self.session.run(self.keep_lease)

    def pass_on(self) -> None:
        """Let somebody else be the lookout."""
        with self.session.lock:
            if self.session.is_hearing:
                self.session.hear_no_more()
            self.lookout.pass_on(self.page)

    def pass_on_after_long_work(self) -> None:
        """The same, when a lookout is at work for long already, or was one and hears still."""
        with self.session.lock:
            busy_since = self._busy_since
            is_long = busy_since is not None and time.monotonic() - busy_since >= LOOKOUT_SECONDS
            if is_long and (self.page.words[LOOKOUT] or self.session.is_hearing):
                self.pass_on()

    def _watch_lifeline(self) -> None:
        """Without the supervisor finish and go, and end at a task's timeout by ourselves."""
        if not select.select([self.lifeline], [], [], 0)[0]:
            return
        if self.stop():
            logger.warning("worker %s lost its supervisor: it finishes what runs and ends", self.worker_id)
        if self.page.is_overdue():
            logger.warning("worker %s ends itself: its task is past its timeout", self.worker_id)
            os.kill(os.getpid(), signal.SIGKILL)
