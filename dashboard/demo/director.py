"""The director: keeps the demo alive for a quarter of an hour, and serves requests of the pages.

It is one process with one session and an advisory lock, so a second director exits. Everything that it starts ends with
it: the server ends its sessions, the kernel its workers.
"""

import contextlib
import json
import logging
import random
import signal
import time
from collections.abc import Generator
from typing import Any

from django.db import transaction
from psycopg import sql

from dashboard import demo
from dashboard.demo import control
from dashboard.demo.scenes import Chain, list_ids
from dashboard.lab import requests, runner
from dashboard.lab.drill import Victim
from dashboard.lab.requests import PRESETS_BY_NAME
from dashboard.lab.worker import Plan
from dashboard.models import DemoRow, LabRun
from dashboard.tasks import count_primes, nap, pack_parcel, pay_out
from tasks.compat import Task
from tasks.framework.declaration import PostgresTask
from tasks.operations.tokens import new_token
from tasks.support import audit, reading
from tasks.support.audit import Change, Who
from tasks.support.database import connect_directly, fetch

logger = logging.getLogger(__name__)
TICK_SECONDS = 0.1
TRICKLE_SECONDS = 0.5
PATIENCE_SECONDS = 30.0  # for one of our workers to start and to get a task before others do
OFFERED = 3  # tasks at a time, because other workers may take some
PRESET = "double-click"  # three runs of a few seconds
DEMO = Who(demo.ACTOR, "command")

WAITING = """
SELECT count(*) FILTER (WHERE status = 'READY') AS ready, count(*) FILTER (WHERE status = 'PROCESSING') AS processing
FROM (SELECT status FROM tasks_task
      WHERE queue_name = %(queue)s::text AND status IN ('READY', 'PROCESSING') LIMIT 100) AS unfinished
"""
Scene = Generator[None, None, None]  # advanced at each tick; it yields while it has to wait


class AlreadyDirected(Exception):
    """Another director runs the demo of this database."""


class Director:
    """Runs the scenes until its time is over or it is stopped."""

    def __init__(self, minutes: float = demo.MINUTES) -> None:
        self.ends_at = time.monotonic() + minutes * 60
        self.is_stopping = False
        self.chain = Chain()
        self.victims: dict[str, Victim] = {}
        self.scenes: list[Scene] = []
        self.is_killing = False
        self.trickled_at = 0.0

    def run(self) -> None:
        """Direct until the end. Raises AlreadyDirected, and psycopg.OperationalError if the session is lost."""
        with contextlib.closing(connect_directly("rowlock:demo:director")) as self.connection:
            if not fetch(self.connection, control.TAKE)[0]["taken"]:
                raise AlreadyDirected
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stop())
            try:
                self._direct()
            finally:
                self.chain.close()
                for victim in self.victims.values():
                    victim.end()

    def stop(self) -> None:
        self.is_stopping = True

    def _direct(self) -> None:
        self._listen()
        self.build_chain()
        self.scenes.append(self.first_scenes())
        self.start(demo.PARCELS)
        while not self.is_stopping and time.monotonic() < self.ends_at:
            self._hear()
            self._trickle()
            self.scenes = [scene for scene in self.scenes if goes_on(scene)]

    def _listen(self) -> None:
        channel = fetch(self.connection, control.CHANNEL)[0]["name"]
        self.connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

    def _hear(self) -> None:
        # A list, because the connection serves nothing else while the generator runs.
        for notice in list(self.connection.notifies(timeout=TICK_SECONDS)):
            self.obey(notice.payload)

    def obey(self, payload: str) -> None:
        """Carry out a request; other notifications are ignored, because any session may send them."""
        try:
            asked = json.loads(payload)
            request = control.Request(asked["do"])
            who = Who(reading.name(asked["actor"]), "page" if asked["source"] == "page" else "command")
        except (ValueError, KeyError, TypeError):
            logger.warning("not a request to the demo: %.80r", payload)
            return
        if request is control.Request.STOP:
            self.stop()
        elif request is control.Request.CHAIN:
            self.build_chain()
        elif not self.is_killing:
            self.is_killing = True
            self.scenes.append(self.kill_a_worker(who))

    def build_chain(self) -> None:
        """Build the lock chain, unless sessions of the previous one still wait."""
        if not self.chain.stands and not self.chain.build(self.connection):
            logger.info("no chain: it needs three orders of the demo that nobody has locked")

    def _trickle(self) -> None:
        """Enqueue two tasks a second."""
        if time.monotonic() - self.trickled_at < TRICKLE_SECONDS:
            return
        self.trickled_at = time.monotonic()
        if random.random() < 0.8:  # noqa: S311  nosec B311
            enqueue(count_primes, random.randrange(1000, 50_000))  # noqa: S311  nosec B311
        else:
            enqueue(nap, round(random.uniform(0.05, 0.6), 2))  # noqa: S311  nosec B311

    def first_scenes(self) -> Scene:
        """The lost payout, then the lab, which keeps a worker busy for some seconds."""
        yield from self.lose_a_payout()
        compare_once()

    def lose_a_payout(self) -> Scene:
        """Kill a worker in the middle of a payout, unless a payout already waits for a person."""
        if self.unfinished(demo.PAYOUTS)["processing"]:
            return
        victim = self.start(demo.PAYOUTS)
        if (yield from self.occupied(victim, pay_out)):
            self.victims.pop(victim.queue).kill()

    def kill_a_worker(self, who: Who) -> Scene:
        """Kill a worker in the middle of a parcel, record it in the audit, and start another worker."""
        victim = self.victims.get(demo.PARCELS) or self.start(demo.PARCELS)
        if (yield from self.occupied(victim, pack_parcel)) and (at := victim.running(self.connection)):
            action = f"kill-worker worker={at['worker_id']} task={at['id']}"
            audit.record(self.connection, who, action, [Change(audit.queue(victim.queue))])
            victim.kill()
            self.start(demo.PARCELS)
        self.is_killing = False

    def start(self, queue: str) -> Victim:
        """Start a worker for this queue; must run in the main thread, with which the worker ends."""
        self.victims[queue] = Victim.start(queue)
        return self.victims[queue]

    def occupied(self, victim: Victim, task: "Task[Any, Any]") -> Generator[None, None, bool]:
        """Wait until the worker is in the middle of such a task, offering more if others take them.

        Returns False if that does not happen within PATIENCE_SECONDS.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not victim.running(self.connection):
            if time.monotonic() > deadline or not victim.is_alive():
                logger.warning("no worker of the demo got a task of %s within %d s", victim.queue, PATIENCE_SECONDS)
                return False
            if not any(self.unfinished(victim.queue).values()):
                for number in range(OFFERED):
                    enqueue(task, number)
            yield
        return True

    def unfinished(self, queue: str) -> dict[str, int]:
        """The number of `ready` and `processing` tasks of this queue, counted up to a hundred."""
        return fetch(self.connection, WAITING, {"queue": queue})[0]


def compare_once() -> None:
    """Ask the lab for a first comparison, unless it has runs already or is off."""
    if runner.is_allowed() and not LabRun.objects.exists():
        preset = PRESETS_BY_NAME[PRESET]
        requests.request_runs([Plan(pattern, **preset.numbers) for pattern in preset.patterns], new_token(), DEMO)


def enqueue(task: "Task[Any, Any]", *args: object) -> None:
    """Enqueue one more task of the demo, and list it."""
    with transaction.atomic():
        list_ids(DemoRow.Kind.TASK, PostgresTask.of(task).enqueue_many([(list(args), {})]))


def goes_on(scene: Scene) -> bool:
    """Advance a scene until it has to wait; False if it is over."""
    try:
        next(scene)
    except StopIteration:
        return False
    return True
