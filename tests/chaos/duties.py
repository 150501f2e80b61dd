"""Everything that is switched on beside a drill's plain tasks: coroutines, limits, a schedule, alerts.

Each is an oracle. The workers serve two queues, so that a task in any other one is an incident until it is deleted.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from dashboard import alerts, secrets
from tests.dashboard.alerts.receiver import Receiver
from tests.databases import QueueDatabase
from tests.ledger import Effect, most_at_once, most_in_a_second
from tests.tasks.worker_app import pooled
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

OPTIONS = ("--queue", "default", "--queue", alerts.QUEUE)
# The fleet's supervisors in turn: processes, threads, and coroutines beside a thread.
KINDS = (
    ("--concurrency", 2),
    ("--concurrency", 1, "--threads", 4),
    ("--concurrency", 1, "--coroutines", 8),
)
LIMIT, RATE = 3, 50
ATTEMPTS = 25  # five strikes in a row would leave a task FAILED, by right
EVERY = 40  # see `tests.chaos.world`, whose numbers these leave free
COROUTINES, LIMITED, PACED = (2, 6, 8, 12, 16, 18, 22, 26, 28, 32, 36, 38), (3, 23), (9,)
INCIDENTS = 8

ADD_CHANNEL = "INSERT INTO dashboard_alertchannel (name, sealed_address, kinds) VALUES ('drill', %s, '{unserved}')"
ADD_SCHEDULE = """
INSERT INTO tasks_schedule (name, task_path, args, every_seconds, timezone, missed, overlap, next_at)
VALUES ('drill', %s, jsonb_build_array(%s::int), 1, 'UTC', 'all', 'allow', date_trunc('second', now()) + '1 second')
RETURNING next_at
"""
LIMIT_IT = "UPDATE tasks_task SET concurrency_key = 'narrow', concurrency_limit = %s WHERE id = ANY(%s)"
PACE_IT = """
UPDATE tasks_task SET concurrency_key = 'paced', rate_key = 'paced', rate = %s, period_seconds = 1 WHERE id = ANY(%s)
"""
DUE = "SELECT 1 FROM tasks_schedule WHERE next_at <= now()"
END_SCHEDULE = "DELETE FROM tasks_schedule RETURNING next_at"
TICKS = "SELECT at, task_id FROM tasks_tick ORDER BY at"
END_INCIDENTS = "DELETE FROM tasks_task WHERE task_path = 'app.of_nobody'"
UNSENT = "SELECT count(*) FROM tasks_task WHERE queue_name = %s AND status <> 'COMPLETED'"


@dataclass
class Duties:
    """The receiver of the alerts, and what was put into the database."""

    channel: Receiver
    seed: int = 0
    first_tick: datetime | None = None
    limited: set[int] = field(default_factory=set)
    paced: set[int] = field(default_factory=set)
    incidents: list[str] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)

    def prepare(self, database: QueueDatabase, seed: int) -> None:
        self.seed = seed
        address = secrets.seal(f"http://{self.channel.host}:{self.channel.port}/")
        database.connection.execute(ADD_CHANNEL, [address])
        self.first_tick = database.value(ADD_SCHEDULE, handlers.vary.module_path, seed)

    def enqueue(self, database: QueueDatabase, number: int) -> list[int]:
        """Enqueue the task of this number if it is one of these; returns its id."""
        place, ids = number % EVERY, []
        if place in COROUTINES:
            chance = random.Random(f"{self.seed} {number}")
            ids = database.enqueue(pooled.rest, chance.choice((0.0, 0.005, 0.02, 0.1)), max_attempts=ATTEMPTS)
        elif place in LIMITED:
            ids = database.enqueue(handlers.work, 0.02, max_attempts=ATTEMPTS)
            database.rows(LIMIT_IT, LIMIT, ids)
            self.limited.update(ids)
        elif place in PACED:
            ids = database.enqueue(handlers.work, 0.0, max_attempts=ATTEMPTS)
            database.rows(PACE_IT, RATE, ids)
            self.paced.update(ids)
        return ids

    def make_incident(self, database: QueueDatabase) -> None:
        """One more queue that nobody serves, until the end of the drill."""
        self.incidents.append(f"drill-{len(self.incidents)}")
        database.enqueue("app.of_nobody", queue=self.incidents[-1])

    def finish(self, database: QueueDatabase) -> None:
        """End the schedule and the incidents, once what is due was done and told."""
        wait_until(lambda: not database.rows(DUE), seconds=60)
        [(next_tick,)] = database.rows(END_SCHEDULE)
        wait_until(lambda: self.are_told("opened"), seconds=120)
        database.connection.execute(END_INCIDENTS)
        wait_until(lambda: self.are_told("resolved"), seconds=120)
        wait_until(lambda: not database.value(UNSENT, alerts.QUEUE), seconds=120)
        self.figures = {**self.tick_figures(database.rows(TICKS), next_tick), **self.alert_figures()}

    def tick_figures(self, ticks: list, next_tick: datetime) -> dict[str, int]:
        """Every second until the next one that would have been, each once and with one task."""
        times, tasks = Counter(tick.at for tick in ticks), Counter(tick.task_id for tick in ticks)
        wanted = {
            self.first_tick + timedelta(seconds=number) for number in range((next_tick - self.first_tick).seconds)
        }
        doubled = sum(number - 1 for number in times.values()) + sum(number - 1 for number in tasks.values())
        return {"ticks": len(ticks), "ticks missed": len(wanted - set(times)), "ticks doubled": doubled}

    def told(self) -> dict[tuple[str, str], set[str]]:
        """The ids of the messages about each incident, by its state."""
        ids: dict[tuple[str, str], set[str]] = {}
        for body in self.channel.bodies:
            queues = [word.strip(".,:") for word in body["title"].split() if word.startswith("drill-")]
            for queue in queues:
                ids.setdefault((queue, body["state"]), set()).add(body["id"])
        return ids

    def are_told(self, state: str) -> bool:
        told = self.told()
        return all((queue, state) in told for queue in self.incidents)

    def alert_figures(self) -> dict[str, int]:
        told, wanted = self.told(), [(queue, state) for queue in self.incidents for state in ("opened", "resolved")]
        return {
            "incidents": len(self.incidents),
            "alerts missed": sum(key not in told for key in wanted),
            "alerts doubled": sum(len(ids) - 1 for ids in told.values()),
        }

    def account(self, effects: list[Effect], struck_at: Callable[[int], datetime | None]) -> dict[str, int]:
        """Count what the schedule, the receiver and the limits show to be wrong, and how much they saw."""
        held = [effect for effect in effects if effect.task_id in self.limited]
        paced = [effect for effect in effects if effect.task_id in self.paced]
        return {
            **self.figures,
            "tasks over their limit": max(0, most_at_once(held, struck_at) - LIMIT),
            "tasks over their rate": max(0, most_in_a_second(paced) - 2 * RATE),
        }
