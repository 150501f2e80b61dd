"""Named locks: how often a second one is taken and released, and how soon one who waits has it after a release."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.benchmarks.bench import Bench
from tests.benchmarks.report import Part, rates, summaries, waits
from tests.benchmarks.subject import Rowlock, go
from tests.redis import RedisServer, throw_away_redis

SECONDS = 2.0
HANDOVERS = 200
# What the table calls it, and what `run_locks` does.
KINDS = {
    "Rowlock, PostgreSQL lease": "lease",
    "Rowlock, advisory lock": "advisory",
    "Rowlock, Redis": "redis",
    "redis-py Lock": "redis_py",
    "plain pg_advisory_lock": "plain",
}
OURS = "Rowlock, PostgreSQL lease"
HOLD_MILLISECONDS = 2


class Locks(Rowlock):
    """The driver of locks, on Rowlock's tables and a Redis of its own."""

    def __init__(self, server_url: str, pipe: object, redis: RedisServer) -> None:
        super().__init__(server_url, pipe)  # type: ignore[arg-type]
        self.redis = redis
        self.command = [self.command[0], "-m", "tests.benchmarks.peers.run_locks"]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "REDIS_URL": self.redis.url}

    def rate(self, kind: str, seconds: float) -> float:
        """Taken and released a second by one process. Raises Unfit."""
        self.pipe.forget()
        with self.crew() as crew:
            self.start(crew, "rate", kind, seconds)
            [[number, took]] = self.pipe.await_word("rate", check=crew.check)
        return int(number) / float(took)

    def hand_over(self, kind: str, times: int) -> list[float]:
        """Seconds from the first release after one process began to wait until it had the lock. Raises Unfit."""
        self.pipe.forget()
        with self.crew() as crew:
            sides = [self.start(crew, "contend", kind, side, HOLD_MILLISECONDS) for side in range(2)]
            self.pipe.await_word("ready", len(sides), check=crew.check)
            for side in sides:
                go(side)
            told = self.pipe.await_word("held", 2 * times, check=crew.check)
        return waited([Held(side, *map(float, at)) for side, *at in told])


@dataclass(frozen=True)
class Held:
    """One spell: whose it was, and when it was asked for, begun and ended."""

    side: str
    asked: float
    began: float
    ended: float


def waited(spells: list[Held]) -> list[float]:
    """For each spell that was waited for: how long it took from the first release meanwhile."""
    found = []
    for spell in spells:
        releases = [
            other.ended for other in spells if other.side != spell.side and spell.asked < other.ended <= spell.began
        ]
        if releases:
            found.append(spell.began - min(releases))
    return found


def run(scene: Bench) -> Part:
    with throw_away_redis() as redis:
        part = scene.part("locks", "Named locks, beside redis-py's and bare advisory locks")
        subject = Locks(scene.server.url, scene.pipe, redis)
        subject.prepare()
        seconds = scene.seconds(SECONDS)
        measures: dict[str, Callable[[], float]] = {
            name: partial(subject.rate, kind, seconds) for name, kind in KINDS.items()
        }
        figures = scene.alternate("taken and released", measures, scene.rounds(), "a second")
        title = "Taken and released by one process, nobody else wants it"
        part.tables.append(rates(title, "a second", figures, OURS))
        handed: dict[str, list[float]] = {name: [] for name in figures}
        for number in range(1, scene.rounds() + 1):
            for name in figures:
                handed[name] += subject.hand_over(KINDS[name], min(HANDOVERS, scene.tasks(HANDOVERS)))
            scene.say(f"handed over, round {number} of {scene.rounds()}")
        title = "Two processes want it all the time: from the first release while one waits until it has the lock"
        part.tables.append(waits(title, {name: values for name, values in handed.items() if values}))
        part.figures = {"rates": figures, "waits": summaries(handed)}
        part.notes = [
            "A lease of Rowlock's is seen to be free when its holder dies, has a fencing number and a keeper that "
            "renews it; a bare advisory lock has none of these. Redis keeps nothing on disk here, PostgreSQL syncs.",
            *(f"{name} was never handed over." for name, values in handed.items() if not values),
            *scene.excuses.values(),
        ]
    return part
