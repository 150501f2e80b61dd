"""The loop of a worker process that runs several tasks at once: its main thread claims and writes, and runs none."""

import logging
import resource

import psycopg

from tasks.framework import declaration
from tasks.framework.declaration import PostgresTask
from tasks.queue.claim import Claim
from tasks.queue.completion import Ending
from tasks.worker.complete import Background
from tasks.worker.leader import drain
from tasks.worker.pool import Job, Pool
from tasks.worker.process import WorkerProcess
from tasks.worker.session import readable_within

logger = logging.getLogger(__name__)

WAIT_SECONDS = 0.25
MANY_FILES = 65_536


class PooledProcess(WorkerProcess):
    """A worker process with a pool of threads and coroutines; claims, completions and releases are as in any other."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.must_flush = False
        self.pool = Pool(
            self.options,
            self.state,
            self.runner,
            may_begin=self.may_begin_any,
            note_end=self.note_end,
            unwritten=self.completer.ids,
            wake=self.wake,
        )
        self.fetcher.held = self.pool.ids

    def make_background(self) -> Background:
        """The other thread writes and keeps the lease at any time; this one reads notifications at any time."""
        return Background(
            self.session, self.completer, self.leadership, lifeline=self.lifeline, stop=self.stop,
            reads=False, look_after=self.look_after, wake=self.wake,
        )  # fmt: skip

    def look_after(self) -> None:
        """Do the other thread's part of each round."""
        self.state.beat()
        self.pool.obey()

    def may_begin_any(self) -> bool:
        """True if a task may begin: no stop was asked, and the lease holds."""
        return not self.is_stopping and self.state.is_lease_fresh(self.session.lease_seconds)

    def note_end(self, task: PostgresTask, ending: Ending) -> None:
        """Keep an ending for the completer; that of a durable task is written at once."""
        if self.holds_row and not ending.failure:
            self.completer.note_completed()
        else:
            self.completer.add(ending)
        if task.durable:
            self.must_flush = True
            self.wake()

    def loop(self) -> None:
        """Claim while there is room, until there is nothing left to do; then wait for what runs."""
        allow_many_files()
        while not self.is_stopping:
            try:
                self.settle()
                if not self.turn():
                    break
            except psycopg.Error as error:
                self.pause(error)
        self.finish()

    def turn(self) -> bool:
        """Claim once, or wait; False when there is nothing left to do."""
        claims_no_more = self.allowance.is_spent or (self.fetcher.is_worn_out and self.pool.is_quick())
        ended, room = self.pool.ended, 0 if claims_no_more else self.pool.room()
        if claims_no_more and self.pool.is_empty():
            return False
        if not room:
            self.state.has_room = 0
            self.leadership.begin_work()
            self.wait()
            return True
        batch = self.next_batch(room, self.pool.coroutines_at_once())
        if batch:
            self.leadership.found_work(got_several=self.fetcher.full_claims > 0 and len(batch) > 1)
            self.run_batch(batch)
        elif self.options.burst and self.pool.is_empty() and self.pool.ended == ended:
            # Else a task has ended since, and another one of its key may be due.
            return not self.fetcher.claimer.has_been_round
        elif self.pool.await_end(ended):
            self.state.has_room = 1
            if self.options.burst:
                self.wait()
            else:
                self.leadership.wait_for_work(
                    lambda: self.is_stopping,
                    look_in=self.fetcher.claimer.look_in,
                    runs_tasks=not self.pool.is_empty(),
                )
        return True

    def run_batch(self, batch: list[Claim]) -> None:
        """Hand the claimed tasks to the pool; give back what cannot begin soon."""
        self.runner.look_around()
        found = [(claim, declaration.find(claim.task_path)) for claim in batch]
        able = [(claim, task) for claim, task in found if task is not None and not claim.is_locked()]
        jobs = [Job(claim, task, self.runner.relaxes(task)) for claim, task in able]
        self.note_busy()
        self.background.begin_batch()
        surplus = self.pool.submit(jobs)
        begun = {claim.id for claim, _ in able}
        self.give_back([job.claim for job in surplus], [claim for claim in batch if claim.id not in begun])

    def settle(self) -> None:
        """Give back what could not begin, and write what does not wait for others."""
        if unstarted := self.pool.take_unstarted():
            self.give_back([job.claim for job in unstarted], [])
        if self.must_flush:
            self.must_flush = False
            self.background.flush()
        if self.pool.is_empty():
            self.background.end_batch()

    def wait(self) -> None:
        """Wait until enough tasks have ended, or for a moment."""
        readable_within([self.wake_read], WAIT_SECONDS)
        drain(self.wake_read)

    def finish(self) -> None:
        """Give back what has not begun, and wait for what runs: not for an attempt that is closed on its row."""
        self.pool.withdraw()
        self.state.clear()
        while True:
            try:
                self.settle()
            except psycopg.Error as error:
                logger.warning("worker %s gives back later: %s", self.worker_id, str(error).strip())
            if self.pool.is_done():
                return
            self.pool.await_end(self.pool.ended)
            self.wait()


def allow_many_files() -> None:
    """Raise the limit of open files: each coroutine may hold a socket, and 1,024 is the usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
