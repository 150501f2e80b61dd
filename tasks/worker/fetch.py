"""Claiming the next batch: never more than can be done within a tenth of a second, and few while there are few.

What one worker takes no other can begin. So it takes one task after the queue was empty, and then twice as many each
time, for as long as it gets as many as it wants: a short task does not wait behind a long one beside an idle worker.
Coroutines that have a slot, or get one within 5 ms, are claimed together: they leave the processor to others while they
wait. The next claim doubles what that one asked for.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from tasks.framework import declaration
from tasks.queue import release, shortcut, strategies
from tasks.queue.claim import Claim, Claimer
from tasks.queue.shortcut import MANY
from tasks.queue.strategies import STRATEGIES
from tasks.worker.complete import Completer
from tasks.worker.options import Options
from tasks.worker.session import Session
from tasks.worker.shared_state import Allowance

logger = logging.getLogger(__name__)

TARGET_SECONDS = 0.1
# Of one limit no more is claimed than is done within this time: what waits in a batch keeps slots from other workers.
LIMITED_SECONDS = 0.005
GROWTH = 8
WEIGHT = 0.3
CHECK_SECONDS = 5.0
# So many checks in a row that were so slow, by a worker that has claimed so many tasks: else the machine was only busy.
SLOW_CHECKS, SLOW_CHECK_SECONDS, MANY_CLAIMS = 3, 0.05, 20_000
# So many claims in a row that got what they wanted, some 2,000 tasks, are worth a second session.
MUCH_WORK = 12


@dataclass
class BatchSize:
    """The adaptive size: one at a time until run times are known, then what the last ones say, at most `maximum`.

    >>> size = BatchSize(maximum=500)
    >>> for _ in range(4): size.learn(ran=size.value, seconds=0.0001 * size.value)
    >>> size.value
    500
    >>> for asked_for in (1, 2, 4): size.note(asked_for, is_full=True)
    >>> size.wanted
    8
    >>> size.note(64, is_full=True)
    >>> size.wanted
    128
    >>> size.note(128, is_full=False)
    >>> size.wanted
    1
    >>> size.learn(ran=1, seconds=2.0)
    >>> size.value
    1
    """

    maximum: int
    value: int = 1
    seconds_per_task: float | None = None
    ramp: int = 1

    @property
    def wanted(self) -> int:
        """The number of tasks that the next claim asks for."""
        return min(self.value, self.ramp)

    @property
    def of_a_limit(self) -> int:
        """The number of tasks of one key or queue with a limit that the next claim may take."""
        return max(1, int(LIMITED_SECONDS / self.seconds_per_task)) if self.seconds_per_task else 1

    def note(self, asked_for: int, *, is_full: bool) -> None:
        """Double the size after a claim that got all it asked for: the queue may hold more."""
        self.ramp = min(2 * max(self.ramp, asked_for), self.maximum) if is_full else 1

    def learn(self, ran: int, seconds: float) -> None:
        """Note that `ran` tasks took `seconds`. Slower tasks count at once, faster ones little by little."""
        if not ran:
            return
        now = seconds / ran
        before = now if self.seconds_per_task is None else self.seconds_per_task
        self.seconds_per_task = max(now, before + WEIGHT * (now - before))
        fits = int(TARGET_SECONDS / max(self.seconds_per_task, 1e-9))
        self.value = max(1, min(self.maximum, self.value * GROWTH, fits))


class Fetcher:
    """Gets the next batch, and writes in the same transaction what has ended, where the strategy allows it.

    One batch may be claimed ahead, on the worker's first session: it holds presence until that claim is over. So nobody
    takes the worker for dead, or reads for the last time what it held, before. Whichever thread uses the session next
    reads the answer, so that batch has a lock.
    """

    def __init__(self, options: Options, session: Session, completer: Completer, allowance: Allowance) -> None:
        self.worker_id, self.state = session.worker_id, session.state
        self.options = options
        self.session = session
        self.completer = completer
        self.allowance = allowance
        self.joins_flush = STRATEGIES[options.strategy].joins_flush
        self.may_work_ahead = self.joins_flush and not options.runs_many  # else the server works beside it anyway
        self.held: Callable[[], set[int]] = set  # the tasks that run now, or wait in this process
        self.claimer = Claimer(self.worker_id, options.queues, declaration.durable_paths(), options.burst)
        self.claimer.walks = allowance.walks
        self.size = BatchSize(maximum=options.largest_batch)
        self.asked_for = 0  # by the last claim
        self.full_claims = 0  # in a row: each got as much as it wanted
        self.checked_at = time.monotonic()
        self.slow_checks = 0  # in a row
        self._ahead: list[Claim] = []
        self._ahead_limit = 0
        self._ahead_lock = threading.Lock()

    def next_batch(self, room: int | None = None, at_once: int = 0) -> list[Claim]:
        """Write what has ended and claim what comes next. Raises psycopg.Error, or Convicted.

        `room`: so many tasks at most. `at_once`: so many coroutines would begin at once.
        """
        wanted = self.size.wanted if room is None else min(max(self.size.ramp, at_once), room)
        limit = self.allowance.take(wanted)
        batch: list[Claim] = []
        try:
            batch = self.session.run(lambda connection: self._flush_and_claim(connection, limit))
        finally:
            self.allowance.give_back(limit - len(batch))
        self.state.claimed += len(batch)
        is_full = 0 < self.asked_for == len(batch) or (bool(batch) and self.claimer.has_more_lines)
        self.full_claims = self.full_claims + 1 if is_full else 0
        self.size.note(self.asked_for, is_full=is_full)
        return batch

    def _flush_and_claim(self, connection: psycopg.Connection, limit: int) -> list[Claim]:
        self.session.keep_lease(connection)
        self._release_unknown(connection)
        if self._may_work_ahead():
            batch = self._claim(connection, limit)
            if batch:
                return batch  # what has ended is sent while these run
        with self.completer.flushing(connection, joins=self.joins_flush) as written:
            # What is being written may be what the next tasks of ordering keys wait for.
            batch = self._claim(connection, limit)
        if written.refused:
            self.state.lease_renewed_ns = 0  # somebody took our work: ask whether we were declared dead
        return batch

    def _claim(self, connection: psycopg.Connection, limit: int) -> list[Claim]:
        batch = self.take_ahead(connection)
        self.asked_for = self._ahead_limit if batch else limit
        self.claimer.at_once = limit if self.options.runs_many else self.size.of_a_limit
        return batch or strategies.claim(connection, self.claimer, limit, self.options.strategy)

    def work_ahead(self) -> None:
        """Let the server claim what comes next and write what has ended, while the batch runs."""
        if not self._may_work_ahead():
            return
        try:
            if self.options.max_tasks is None and self.size.wanted >= MANY:
                self.session.run(self._claim_ahead)
            self.completer.send()
        except psycopg.Error as error:
            logger.warning("worker %s claims and writes after this batch: %s", self.worker_id, str(error).strip())

    @property
    def is_worn_out(self) -> bool:
        """True if the index keeps so many rows that this worker has run that another one should take its place.

        They stay there beside an open transaction, and whoever asks for what this worker holds passes them all: its own
        check, and recovery after its death. Nobody has run anything under a new id.
        """
        is_alone = self.options.burst or self.options.max_tasks is not None  # nobody takes its place
        return self.slow_checks >= SLOW_CHECKS and self.state.claimed >= MANY_CLAIMS and not is_alone

    def _may_work_ahead(self) -> bool:
        """True if there is so much work that the server should work beside the handlers."""
        return self.may_work_ahead and self.full_claims >= MUCH_WORK and self.completer.may_send()

    def _claim_ahead(self, connection: psycopg.Connection) -> None:
        """Send a claim behind the last one without waiting for its answer."""
        self._ahead_limit = self.size.wanted
        self.state.begin_ahead()
        read = shortcut.send(connection, self.claimer, self._ahead_limit)
        if read is None:
            self.state.end_ahead()
            return

        def keep() -> None:
            batch = read()
            with self._ahead_lock:
                self._ahead = batch
            if not batch:
                self.state.end_ahead()

        self.session.read_later(keep)

    def take_ahead(self, connection: psycopg.Connection) -> list[Claim]:
        """The batch that was claimed ahead; empty when there is none, or when the supervisor took it back.

        No rows are claimed ahead any more: the next claim is the worker's own.
        """
        with self._ahead_lock:
            batch, self._ahead = self._ahead, []
        if self.state.end_ahead():
            return batch
        self._release(connection, batch)
        self.claimer.forget_ends()
        return []

    def ahead_ids(self) -> set[int]:
        """The tasks that were claimed ahead and are not taken."""
        with self._ahead_lock:
            return {claim.id for claim in self._ahead}

    def give_back(self, claims: list[Claim], *, parked_for: str = "") -> None:
        """Give back claims that have not begun. `parked_for`: why this worker cannot begin them."""
        if claims:
            self.session.run(lambda connection: self._release(connection, claims, parked_for=parked_for))

    def leave(self, connection: psycopg.Connection) -> None:
        """Give back everything that was claimed and has not begun."""
        self._release(connection, self.take_ahead(connection))
        self.session.is_unsure = True
        self._release_unknown(connection)

    def _release(self, connection: psycopg.Connection, batch: list[Claim], *, parked_for: str = "") -> None:
        """Give claims back; those that the supervisor gave back already do not match any more."""
        pairs = [(claim.id, claim.claimed_at()) for claim in batch]
        release.release(connection, self.worker_id, pairs, parked_for=parked_for)

    def _release_unknown(self, connection: psycopg.Connection) -> None:
        """Now and then, and after every error: give back rows that are ours without our knowing (a lost answer)."""
        now = time.monotonic()
        if not self.session.is_unsure and now - self.checked_at < CHECK_SECONDS:
            return
        held = self.held()  # first: what ends meanwhile is among the completer's
        released = release.release_unknown(connection, self.worker_id, held | self.completer.ids() | self.ahead_ids())
        if released:
            logger.warning(
                "worker %s released %s tasks whose claim was never answered, ids %s to %s",
                self.worker_id, len(released), min(released), max(released),
            )  # fmt: skip
        self.checked_at = now
        self.slow_checks = self.slow_checks + 1 if time.monotonic() - now > SLOW_CHECK_SECONDS else 0
        self.session.is_unsure = False
