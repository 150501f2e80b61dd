"""The process that forks the workers, watches over them, and starts them anew."""

import contextlib
import gc
import logging
import os
import select
import signal
import socket
import sys
import time

import psycopg
from django.db import connections

from tasks import conf
from tasks.support import tracing
from tasks.support.database import name_sessions_of_handlers, session_name
from tasks.worker import companion
from tasks.worker.companion import Companion
from tasks.worker.leader import LeaderToken, drain
from tasks.worker.maintenance import Child, Maintenance
from tasks.worker.options import Options
from tasks.worker.pooled_process import PooledProcess
from tasks.worker.process import DONE, ID_TAKEN, REPLACED, RETIRED, WorkerProcess
from tasks.worker.session import READ_ONLY
from tasks.worker.shared_state import CANCEL_SECONDS, Allowance, Running, SharedState

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1
IDLE_TICK_SECONDS = 1.0
SLOW_SECONDS = 0.25
CRASH_LOOP_SECONDS = 60.0
CRASH_CAP_SECONDS = 30.0
LAST_FLUSH_SECONDS = 0.5
HANG_SECONDS = 5.0  # a process that is to be replaced, and runs no Python or only what is closed, is killed after it
# Two batches of 2,000 tasks are more objects than start a collection by default (700 to 2,000), and no garbage.
OBJECTS_BEFORE_COLLECTION = 20_000


class ServiceManager:
    """Notifies systemd through NOTIFY_SOCKET, if it is set: ready, alive, stopping.

    With WATCHDOG_USEC systemd kills a supervisor that stays silent, and its workers, and starts it again. Until then
    the workers renew their leases themselves, so nobody else takes up their tasks.
    """

    def __init__(self) -> None:
        # Processes that handlers start must not notify in our name.
        address = os.environ.pop("NOTIFY_SOCKET", "")
        self.address = f"\0{address[1:]}" if address.startswith("@") else address
        self.every_seconds = int(os.environ.pop("WATCHDOG_USEC", "0")) / 1e6 / 3
        self.due = 0.0

    def notify(self, message: str) -> None:
        """Send one message, for example READY=1; a failure is ignored."""
        if self.address:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                manager.setblocking(False)
                manager.sendto(message.encode(), self.address)

    def tick(self) -> None:
        """Notify that the supervisor lives, as often as systemd asked for."""
        if self.every_seconds and time.monotonic() >= self.due:
            self.due = time.monotonic() + self.every_seconds
            self.notify("WATCHDOG=1")


class Supervisor:
    """Runs `options.concurrency` children until stopped or, in a burst, until nothing is due."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.children: dict[int, Child] = {}
        self.report = dict.fromkeys(("claimed", "completed", "failed", "refused"), 0)
        self.signals: list[int] = []
        self.crashes = self.retired = 0
        self.spawn_at = 0.0
        self.stop_at: float | None = None
        self.maintenance = Maintenance()
        self.manager = ServiceManager()
        self.companions = [Companion(module) for module in companion.MODULES if not options.burst]
        self.allowance = Allowance(options.max_tasks)
        self.leader_token = LeaderToken()
        self.lease_seconds: float = conf.get("LEASE_SECONDS")
        self.lifeline_read, self.lifeline_write = os.pipe2(os.O_CLOEXEC)
        self.busy_read, self.busy_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Supervise until all ends. Returns 0 after an orderly end, 128 + n if a second signal n cut it short."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda caught, _: self.signals.append(caught))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        self.manager.notify("READY=1")
        tracing.api()  # imported once, not by each child
        gc.freeze()  # what is loaded is no garbage: children need not go through it, nor copy its pages by doing so
        gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
        while True:
            self.spawn_missing()
            if not self.children and self.is_over:
                break
            self.wait()
            self.obey_signals()
            self.reap()
            self.watch()
            self.manager.tick()
            self.maintenance.tick(self.children.values())
            self.keep_companions()
        for one in self.companions:
            one.end()
        self.maintenance.close()
        return 128 + self.signals[1] if len(self.signals) > 1 else 0

    # Starting.

    @property
    def is_over(self) -> bool:
        return self.stop_at is not None or self.retired >= self.options.concurrency

    @property
    def is_missing_some(self) -> bool:
        """True if a child is to be started. None is while the database is away: it would only end, ever more slowly."""
        is_away = self.maintenance.lost_at is not None
        return not self.is_over and not is_away and len(self.children) + self.retired < self.options.concurrency

    def spawn_missing(self) -> None:
        """Start children until there are enough; after crashes with growing pauses."""
        while self.is_missing_some and time.monotonic() >= self.spawn_at:
            child = Child(os.urandom(8).hex(), 0, SharedState(self.options.slots), time.monotonic())
            child.state.renew_lease()
            connections.close_all()
            child.pid = os.fork()
            if child.pid == 0:
                os._exit(self._be_child(child))
            self.children[child.pid] = child

    def _be_child(self, child: Child) -> int:
        """Run the worker in the forked process; the fork must never return into the supervisor's loop."""
        worker: WorkerProcess | None = None
        try:
            self._let_go()
            name_sessions_of_handlers(session_name("worker", child.id))
            shared = (child.state, self.allowance, self.leader_token, self.lifeline_read, self.busy_write)
            process = PooledProcess if self.options.runs_many else WorkerProcess
            worker = process(child.id, self.options, *shared, self.signals)
            return worker.main()
        except (psycopg.OperationalError, READ_ONLY) as error:
            text = worker.session.told(error) if worker else str(error).strip()
            logger.error("worker %s cannot start: %s", child.id, text)
        except BaseException:
            logger.exception("worker %s ended by an error of its own", child.id)
        return 1

    def keep_companions(self) -> None:
        """Start the process of each duty that is needed and has none."""
        for one in self.companions if self.stop_at is None else ():
            if one.is_wanted(self.maintenance.connection):
                connections.close_all()
                one.pid = os.fork()
                if one.pid == 0:
                    os._exit(one.main(self._let_go, self.lifeline_read))

    def _let_go(self) -> None:
        """In a forked child: leave to the supervisor what is its own."""
        self.maintenance.let_go()
        for descriptor in (self.lifeline_write, self.busy_read, self.wake_read, self.wake_write):
            os.close(descriptor)
        # What handlers print is log; stdout is for the report alone.
        os.dup2(2, 1)
        sys.stdout = sys.stderr

    # Waiting and signals.

    def wait(self) -> None:
        is_busy = any(child.state.busy for child in self.children.values())
        seconds = min(TICK_SECONDS if is_busy or self.signals else IDLE_TICK_SECONDS, self.maintenance.due_in())
        if self.is_missing_some:
            seconds = min(seconds, max(0.0, self.spawn_at - time.monotonic()))
        sources = [self.busy_read, self.wake_read, *self.maintenance.descriptors()]
        for source in select.select(sources, [], [], seconds)[0]:
            if source in (self.busy_read, self.wake_read):
                drain(source)

    def obey_signals(self) -> None:
        """First signal: stop in order within the grace period. Second signal, or its end: at once."""
        now = time.monotonic()
        if self.signals and self.stop_at is None:
            self.stop_at = now + conf.get("GRACE_SECONDS")
            self.manager.notify("STOPPING=1")
            logger.info("stopping: no new claims; running tasks have %s s to finish", conf.get("GRACE_SECONDS"))
            for child in self.children.values():
                self._send(child, signal.SIGTERM)
        is_grace_over = self.stop_at is not None and now > self.stop_at
        if len(self.signals) > 1 or is_grace_over:
            for child in self.children.values():
                self.kill(child, "stop")

    # Watching over the children.

    def watch(self) -> None:
        for child in self.children.values():
            self._watch_one(child)
        running = {task.id for child in self.children.values() for task in child.state.running()}
        self.maintenance.to_end &= running

    def _watch_one(self, child: Child) -> None:
        state = child.state
        is_slow = state.is_slow(SLOW_SECONDS)
        if child.is_frozen or (is_slow and not state.has_room):
            self.leader_token.pass_on(state)
        if child.is_frozen or is_slow or self.stop_at is not None:
            self.maintenance.release(child.id, state.take_unstarted())
        self._end_some(child, set(self.maintenance.cancels.pop(child.id, [])))
        if state.convicted and not child.is_frozen:
            # It ends by itself, unless it hangs in its task or on a silent connection.
            child.convicted_at = child.convicted_at or time.monotonic()
            if time.monotonic() - child.convicted_at > self.lease_seconds:
                self.kill(child, "convicted")
        if child.id in self.maintenance.stops and not child.is_leaving:
            child.is_leaving = True
            self._send(child, signal.SIGTERM)

    def _end_some(self, child: Child, cancels: set[tuple[int, int]]) -> None:
        """End the tasks that are to be cancelled, and those past their timeout."""
        running = child.state.running()
        for task in running:
            is_cancelled = task[1:3] in cancels or task.id in self.maintenance.to_end or task[1:3] in child.cancelled
            if is_cancelled or task.late_seconds > 0:
                self._end(child, "cancel" if is_cancelled else "timeout", task)
        if cancels - {task[1:3] for task in running}:
            self.maintenance.release(child.id, child.state.take_unstarted())
        if child.closed:
            self._end_if_it_hangs(child)

    def _end(self, child: Child, reason: str, task: Running) -> None:
        """End a task: with its process, or as a coroutine, or by closing its attempt while its thread runs on."""
        if not self.options.runs_many:
            if not child.state.unwritten or task.seconds >= LAST_FLUSH_SECONDS:  # else: these get a moment
                self.kill(child, reason, task)
        elif task.slot < self.options.threads:
            self._close(child, reason, task)
        elif reason == "timeout":  # its process cancels it, unless a coroutine keeps the event loop to itself
            if task.late_seconds > CANCEL_SECONDS:
                self.kill(child, reason, task)
        else:
            child.state.cancel(task)
            if time.monotonic() - child.cancelled.setdefault(task[1:3], time.monotonic()) > CANCEL_SECONDS:
                self.kill(child, reason, task)

    def _close(self, child: Child, reason: str, task: Running) -> None:
        """Close the attempt on its row: its thread cannot be stopped, so the process ends after its other tasks."""
        if task[1:3] in child.closed:
            return
        child.closed.add(task[1:3])
        child.closed_at = child.closed_at or time.monotonic()
        child.replaced_for = child.replaced_for or reason
        child.state.close(task)
        self.maintenance.end_running(child, task, reason)
        logger.warning("replacing worker %s (pid %s) after its other tasks: %s", child.id, child.pid, reason)
        self._send(child, signal.SIGTERM)

    def _end_if_it_hangs(self, child: Child) -> None:
        """Kill a child that should have been replaced: its Python stands still, or only closed attempts run."""
        now = time.monotonic()
        is_alone = {task[1:3] for task in child.state.running()} <= child.closed
        child.alone_at = (child.alone_at or now) if is_alone else None  # its last endings get time to be written
        hangs = child.alone_at is not None and now - child.alone_at > HANG_SECONDS
        if hangs or min(now - child.closed_at, now - child.state.pulse_ns / 1e9) > HANG_SECONDS:
            self.kill(child, child.replaced_for)

    def kill(self, child: Child, reason: str, task: Running | None = None) -> None:
        """Kill a child; `task`: what is meant, if that is not all of it."""
        if task:
            child.doomed.add(task[1:3])
        if not child.killed_for:
            child.killed_for = reason
            logger.warning("ending worker %s (pid %s): %s", child.id, child.pid, reason)
        self._send(child, signal.SIGKILL)

    @staticmethod
    def _send(child: Child, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)

    # After a worker's end.

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if not pid:
                return
            child = self.children.get(pid)
            if child is None:
                self._reap_companion(pid, status)
            elif os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
                child.is_frozen = os.WIFSTOPPED(status)
                self.maintenance.hurry()
            else:
                self.account_for(self.children.pop(pid), status)

    def _reap_companion(self, pid: int, status: int) -> None:
        for one in self.companions:
            if one.pid == pid and not (os.WIFSTOPPED(status) or os.WIFCONTINUED(status)):
                one.ended(status)

    def account_for(self, child: Child, status: int) -> None:
        """Account for a child that ended, and decide whether another takes its place."""
        for name in self.report:
            self.report[name] += getattr(child.state, name)
        self.leader_token.pass_on(child.state)
        code = os.waitstatus_to_exitcode(status)
        if code == DONE:
            if child.is_leaving or self.options.burst or self.allowance.is_spent or self.options.max_tasks is not None:
                self.retired += 1
            return
        self.maintenance.take_back(child)
        self.allowance.give_back(len(child.state.unstarted()))
        if code in (ID_TAKEN, RETIRED, REPLACED) or child.killed_for:
            self.retired += code == REPLACED and child.is_leaving
            return
        lived = time.monotonic() - child.started
        self.crashes = 0 if lived > CRASH_LOOP_SECONDS else self.crashes + 1
        pause = min(CRASH_CAP_SECONDS, 0.0 if self.crashes <= 1 else 0.25 * 2 ** (self.crashes - 2))
        self.spawn_at = time.monotonic() + pause
        cause = f"signal {-code}" if code < 0 else f"exit status {code}"
        logger.error("worker %s (pid %s) died by %s; another starts in %.2f s", child.id, child.pid, cause, pause)
