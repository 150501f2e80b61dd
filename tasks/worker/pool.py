"""The tasks that one process runs at once: synchronous handlers in threads, `async def` handlers on one event loop.

A claim cannot choose between the two kinds. What waits for one kind while the other has room is therefore given back,
unless it can begin soon.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

from tasks.framework import declaration
from tasks.framework.declaration import PostgresTask
from tasks.queue.claim import Claim
from tasks.queue.completion import Ending, Failure
from tasks.worker import connections, failures
from tasks.worker.options import Options
from tasks.worker.orm_thread import CURRENT, OrmThread
from tasks.worker.run import Runner
from tasks.worker.shared_state import BATCH_LIMIT, SharedState

# By the latest run times, a claimed task waits so long in this process at most before it begins.
AHEAD_SECONDS = 0.05
SOON_SECONDS = 0.005  # as long as a claim takes: nobody else could begin a task sooner
SHORT_SECONDS = 0.25  # nothing is claimed ahead of tasks that take longer
WEIGHT = 0.3
# After tasks found no slot of their kind, the next claim waits so long, or until one of these slots is free.
FULL_SECONDS = 0.25
PROBE_SECONDS = 1.0  # while one kind is full, the other one is tried that often
REFRESH_SECONDS = 0.1  # between two looks at a thread's connections


@dataclass(slots=True, eq=False)
class Job:
    """A claimed task and its function. `index`: its row in the batch that is published."""

    claim: Claim
    task: PostgresTask
    is_relaxed: bool
    index: int = 0
    slot: int = 0
    began: float = 0.0
    ended_for: Failure | None = None  # why its coroutine was cancelled
    call: "asyncio.Task[None] | None" = None


@dataclass(eq=False)
class Kind:
    """The slots of threads, or of coroutines: those that are free, and the jobs that wait and run."""

    free: list[int]
    waiting: deque[Job] = field(default_factory=deque)
    running: dict[int, Job] = field(default_factory=dict)  # by slot
    was_claimed: bool = False  # by the latest claim

    @property
    def is_used(self) -> bool:
        return self.was_claimed or bool(self.running or self.waiting)

    @property
    def excess(self) -> int:
        """Jobs that wait without a free slot; below 0: slots that stay free."""
        return len(self.waiting) - len(self.free)

    def begun_since(self, since: float) -> int:
        """How many of those that run began later. The others, first in their dict, may keep their slots for long."""
        return len(self.running) - sum(1 for _ in takewhile(lambda job: job.began < since, self.running.values()))


class Pool:
    """The slots of one process. Its main thread submits; threads and the event loop take what waits by themselves.

    `may_begin` allows the next task; `note_end` gets each ending; `wake` calls the main thread.
    """

    def __init__(
        self,
        options: Options,
        state: SharedState,
        runner: Runner,
        *,
        may_begin: Callable[[], bool],
        note_end: Callable[[PostgresTask, Ending], None],
        unwritten: Callable[[], set[int]],
        wake: Callable[[], None],
    ) -> None:
        self.options, self.state, self.runner = options, state, runner
        self.may_begin, self.note_end, self.unwritten, self.wake = may_begin, note_end, unwritten, wake
        self.threads = Kind(list(reversed(range(options.threads))))
        self.coroutines = Kind(list(reversed(range(options.threads, options.slots))))
        self.kinds = (self.threads, self.coroutines)
        self.ended = 0  # jobs so far
        self._lock = threading.Lock()
        self._has_work = threading.Condition(self._lock)
        self._started = self._idle = 0  # threads
        self._unstarted: list[Job] = []
        self._awaited = 0  # so many more jobs are to end before the main thread is called; 0: it is not waiting
        self._full: Kind | None = None
        self._full_until = self._probe_at = 0.0
        self._seconds = self._ran = 0.0  # since `learn`
        self._mean_seconds: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._orm_threads = [OrmThread(f"orm-{number}") for number in range(options.orm_threads)]

    # The main thread's side.

    def room(self) -> int:
        """How many tasks to claim now; 0: wait until `wake` is called, once that many have ended."""
        with self._lock:
            self._learn()
            ahead = self._ahead()
            used = [kind for kind in self.kinds if kind.is_used]
            waiting = sum(len(kind.waiting) for kind in self.kinds)
            room = min((ahead - sum(kind.excess for kind in used)) if used else 1, BATCH_LIMIT - waiting)
            least = max(1, ahead // 2)
            now = time.monotonic()
            is_full = self._full is not None and self._full.excess >= 0 and now < self._full_until
            if room <= 0 and now >= self._probe_at and self._has_idle_kind():
                self._probe_at = now + PROBE_SECONDS
                return 1
            self._awaited = 1 if is_full else max(0, least - room)
            return 0 if self._awaited else room

    def coroutines_at_once(self) -> int:
        """How many more would begin within SOON_SECONDS; 0 unless nothing but coroutines was claimed last."""
        with self._lock:
            if self.threads.is_used or not self.coroutines.is_used:
                return 0
            turns = int(SOON_SECONDS / self._mean_seconds) if self._mean_seconds else 0
            return max(0, turns * self.options.coroutines - self.coroutines.excess)

    def _has_idle_kind(self) -> bool:
        """True if slots of one kind are free that no claim has met; the next task of the queue may be for them."""
        is_known = {self.threads: True, self.coroutines: not self.runner.holds_row and declaration.has_coroutines()}
        return any(is_known[kind] and kind.free and not kind.is_used for kind in self.kinds)

    def await_end(self, after: int) -> bool:
        """Let `wake` be called at the next end; False if one has come since `after` had ended."""
        with self._lock:
            self._awaited = 1
            return self.ended == after

    def submit(self, jobs: list[Job]) -> list[Job]:
        """Let the jobs begin as soon as there are slots; returns those that would have to wait for long."""
        with self._lock:
            carried = [job for kind in self.kinds for job in kind.waiting]
            if not self._publish(carried + jobs, has_carried=bool(carried)):  # the supervisor has given those back
                self._withdraw()
                self._publish(jobs)
            for kind in self.kinds:
                kind.was_claimed = False
            for job in jobs:
                kind = self._kind_of(job.task)
                kind.waiting.append(job)
                kind.was_claimed = True
            surplus = [job for kind in self.kinds for job in self._surplus(kind)]
            self._call_threads()
            has_coroutines = bool(self.coroutines.waiting)
        if has_coroutines:
            self._event_loop().call_soon_threadsafe(self._start_coroutines)
        return surplus

    def _publish(self, jobs: list[Job], *, has_carried: bool = False) -> bool:
        running = {job.claim.id for kind in self.kinds for job in kind.running.values()}
        earlier = running | self.unwritten()  # in this order: what ends meanwhile is among the unwritten
        for index, job in enumerate(jobs):
            job.index = index
        return self.state.publish([job.claim for job in jobs], earlier, has_carried=has_carried)

    def _kind_of(self, task: PostgresTask) -> Kind:
        """Where it runs: a transaction that holds the task's row needs a thread."""
        return self.coroutines if task.is_async and not self.runner.holds_row else self.threads

    def _surplus(self, kind: Kind) -> list[Job]:
        surplus = [kind.waiting.pop() for _ in range(max(0, kind.excess - self._ahead()))]
        if surplus:
            self._full, self._full_until = kind, time.monotonic() + FULL_SECONDS
        return surplus

    def _learn(self) -> None:
        """Note how long the latest tasks took. Slower tasks count at once, faster ones little by little."""
        if self._ran:
            now = self._seconds / self._ran
            before = now if self._mean_seconds is None else self._mean_seconds
            self._mean_seconds = max(now, before + WEIGHT * (now - before))
            self._seconds = self._ran = 0.0

    def _ahead(self) -> int:
        """How many tasks may wait for a slot: as many as begin within AHEAD_SECONDS."""
        if self._mean_seconds is None or self._mean_seconds > SHORT_SECONDS:
            return 0
        since = time.monotonic() - SHORT_SECONDS
        slots = sum(len(kind.free) + kind.begun_since(since) for kind in self.kinds if kind.is_used)
        return min(int(AHEAD_SECONDS * slots / max(self._mean_seconds, 1e-6)), self.options.largest_batch)

    def ids(self) -> set[int]:
        """The tasks that run or wait here."""
        with self._lock:
            jobs = [job for kind in self.kinds for job in (*kind.waiting, *kind.running.values())]
            return {job.claim.id for job in jobs + self._unstarted}

    def is_empty(self) -> bool:
        with self._lock:
            return not any(kind.waiting or kind.running for kind in self.kinds)

    def is_quick(self) -> bool:
        """True if everything that runs began within SHORT_SECONDS."""
        since = time.monotonic() - SHORT_SECONDS
        with self._lock:
            return all(kind.begun_since(since) == len(kind.running) for kind in self.kinds)

    def is_done(self) -> bool:
        """True if nothing runs but what the supervisor has closed on its row."""
        with self._lock:
            slots = {slot for kind in self.kinds for slot in kind.running}
        return slots <= set(self.state.closed_slots())

    def take_unstarted(self) -> list[Job]:
        """Jobs that could not begin, to be given back."""
        with self._lock:
            unstarted, self._unstarted = self._unstarted, []
            return unstarted

    def withdraw(self) -> None:
        """Begin nothing more of what waits."""
        with self._lock:
            self._withdraw()

    def _withdraw(self) -> None:
        for kind in self.kinds:
            self._unstarted += kind.waiting
            kind.waiting.clear()

    # The side of threads and coroutines.

    def _take(self, kind: Kind) -> Job | None:
        """Under the lock: begin the next job; when it may not begin, neither may the others."""
        if not kind.waiting or not kind.free:
            return None
        job = kind.waiting[0]
        slot = kind.free[-1]
        if not self.may_begin() or not self.state.begin(job.index, job.task.timeout, slot):
            self._withdraw()
            self.wake()
            return None
        kind.waiting.popleft()
        job.slot, job.began = kind.free.pop(), time.monotonic()
        kind.running[slot] = job
        return job

    def _end(self, kind: Kind, job: Job, ending: Ending) -> None:
        self.note_end(job.task, ending)  # first: what ended is in some list all the time
        self.state.end(job.slot)
        with self._lock:
            del kind.running[job.slot]
            kind.free.append(job.slot)
            self.ended += 1
            self._ran += 1
            self._seconds += ending.finished - ending.started
            is_awaited = self._awaited == 1
            self._awaited = max(0, self._awaited - 1)
        if is_awaited:
            self.wake()

    # Threads.

    def _call_threads(self) -> None:
        """Under the lock: wake as many threads as there are jobs, and start those that are missing."""
        wanted = min(len(self.threads.waiting), len(self.threads.free))
        self._has_work.notify(min(wanted, self._idle))
        for _ in range(min(wanted - self._idle, self.options.threads - self._started)):
            self._started += 1
            threading.Thread(target=self._run_in_thread, name=f"handler-{self._started}", daemon=True).start()

    def _run_in_thread(self) -> None:
        connections.watch()
        refresh_at = 0.0
        while True:
            with self._lock:
                while (job := self._take(self.threads)) is None:
                    self._idle += 1
                    self._has_work.wait()
                    self._idle -= 1
            if job.began >= refresh_at:
                connections.refresh()
                refresh_at = job.began + REFRESH_SECONDS
            self._end(self.threads, job, self.runner.run(job.claim, job.task))

    # Coroutines.

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            for thread in self._orm_threads:
                thread.enter(self._loop)
            threading.Thread(target=self._loop.run_forever, name="coroutines", daemon=True).start()
        return self._loop

    def _start_coroutines(self) -> None:
        """On the event loop: begin what has a slot, each in its own copy of its ORM thread's context."""
        while True:
            with self._lock:
                job = self._take(self.coroutines)
            if job is None:
                return
            context = self._orm_thread_of(job).context.copy()
            job.call = self._event_loop().create_task(self._run_coroutine(job), context=context)

    async def _run_coroutine(self, job: Job) -> None:
        CURRENT.set(job)
        timer = self._event_loop().call_later(job.task.timeout, self._time_out, job) if job.task.timeout else None
        try:
            ending = await self.runner.run_coroutine(job.claim, job.task, lambda: job.ended_for)
        except BaseException as error:  # noqa: BLE001  cancelled while the end of its handler was being told
            failure = job.ended_for or failures.describe(error, job.claim, job.task, [], {})
            claim = job.claim
            ending = Ending(claim.id, claim.version, claim.attempt, job.began, time.monotonic(), failure=failure)
        if timer:
            timer.cancel()
        self._end(self.coroutines, job, ending)
        self._start_coroutines()

    def _orm_thread_of(self, job: Job) -> OrmThread:
        return self._orm_threads[job.slot % len(self._orm_threads)]

    def obey(self) -> None:
        """Cancel the coroutines that the supervisor wants to end."""
        for slot, task_id in self.state.to_cancel():
            job = self.coroutines.running.get(slot)
            if job is not None and job.claim.id == task_id and job.ended_for is None:
                self._event_loop().call_soon_threadsafe(self._cancel, job, failures.CANCELLED)

    def _time_out(self, job: Job) -> None:
        self._cancel(job, failures.timed_out(job.claim.attempt, job.task, time.monotonic() - job.began))

    def _cancel(self, job: Job, failure: Failure) -> None:
        """On the event loop: cancel a coroutine, and the query that it waits for."""
        if job.call is None or job.call.done() or job.ended_for is not None:
            return
        job.ended_for = failure
        job.call.cancel()
        self._event_loop().run_in_executor(None, self._orm_thread_of(job).cancel_query, job)
