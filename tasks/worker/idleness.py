"""What a worker process does while nothing is due: it looks out for all workers of its supervisor, or sleeps."""

import contextlib
import os
import random
from collections.abc import Callable

from tasks.worker.companion import Companion
from tasks.worker.lookout import Lookout
from tasks.worker.page import BUSY, LOOKOUT, Page
from tasks.worker.session import Session

POLL_SECONDS = 1.0  # of the lookout
SLEEP_SECONDS = 5.0  # of the others, should the lookout be of no use
SOON_SECONDS = 0.03


class Idleness:
    """The pauses of one worker. `wakes` is readable once a signal came."""

    def __init__(self, page: Page, session: Session, lookout: Lookout, companion: Companion, *, wakes: int) -> None:
        self.page = page
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
        is_lookout = self.lookout.take(self.page)
        seconds = self._look_out(spread * POLL_SECONDS) if is_lookout else spread * SLEEP_SECONDS
        if not self.session.is_settled:
            seconds = min(seconds, SOON_SECONDS)  # presence is not held yet
        if seconds and not is_stopping():
            self.page.words[BUSY] = 0
            if not is_lookout:
                self._sleep(seconds)
            elif self.session.wait(seconds, self.wakes):
                drain(self.wakes)

    def end(self, *, got_several: bool) -> None:
        """There is a task. There may be more: who was woken found one, or got several and as many as it wanted."""
        if self.was_woken or (self.page.words[LOOKOUT] and got_several):
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
        self.was_woken = self.lookout.sleep(self.page, seconds, [*self.session.descriptors(), self.wakes])
        self.session.drain()
        drain(self.wakes)


def drain(descriptor: int) -> None:
    """Read all that is in a pipe."""
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 1024):
            pass
