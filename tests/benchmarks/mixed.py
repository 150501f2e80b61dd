"""A mixed load: 90 % of the tasks take 1 ms, 9 % 50 ms, 1 % 2 s; they arrive at random, four can run at a time.

Four could run 158 of them a second; fifty a second arrive, the same for everybody. A short task may wait when all four
are at work; it must not wait behind a long one while another worker has nothing to do.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from tests.benchmarks.bench import Bench
from tests.benchmarks.peers.environment import Unfit
from tests.benchmarks.report import Part, Table, percentile, summaries
from tests.benchmarks.subject import Subject

PEERS = ("Graphile Worker", "PgQueuer", "Procrastinate")
SLOTS, A_SECOND, SECONDS = 4, 50.0, 20.0
SHORT, MEDIUM, LONG = 1, 50, 2000  # milliseconds
SHARES = {LONG: 0.01, MEDIUM: 0.09}
PASSED_OVER_SECONDS = 0.25  # a short task that waited this long while a slot was free


@dataclass
class Ran:
    """One task: how long it was to take, and when it was sent, began and ended."""

    milliseconds: int
    sent: float = 0.0
    began: float = 0.0
    ended: float = 0.0


def schedule(seconds: float, seed: int) -> list[tuple[float, int]]:
    """When tasks arrive, in seconds, and how long each takes, in milliseconds: the same for the same seed."""
    chance = random.Random(seed)
    number = max(1, round(seconds * A_SECOND))
    lengths = [length for length, share in SHARES.items() for _ in range(round(share * number))]
    lengths += [SHORT] * (number - len(lengths))
    chance.shuffle(lengths)
    arrivals = sorted(chance.uniform(0, seconds) for _ in range(number))
    return list(zip(arrivals, lengths, strict=True))


def ran(subject: Subject, plan: list[tuple[float, int]]) -> list[Ran]:
    """What became of each task of the plan. Raises Unfit."""
    subject.empty()
    subject.pipe.forget()
    tasks = {number: Ran(length) for number, (_, length) in enumerate(plan)}
    with subject.crew() as crew:
        subject.start_worker(crew, SLOTS, "mixed")
        letters = subject.start(crew, "send").stdin
        assert letters
        write(letters, "-1 0")  # when this one has run, everybody is there
        subject.pipe.await_word("ran", check=crew.check)
        post = threading.Thread(target=send, args=(letters, plan), daemon=True)
        post.start()
        gather(subject, tasks, crew.check)
        post.join()
    return list(tasks.values())


def send(letters: IO[bytes], plan: list[tuple[float, int]]) -> None:
    began = time.monotonic()
    for number, (at, length) in enumerate(plan):
        time.sleep(max(0.0, began + at - time.monotonic()))
        write(letters, f"{number} {length}")


def write(letters: IO[bytes], line: str) -> None:
    letters.write(f"{line}\n".encode())
    letters.flush()


def gather(subject: Subject, tasks: dict[int, Ran], check: Callable[[], object]) -> None:
    """Read what is told, until the last task has ended. Raises Unfit."""
    left = len(tasks)
    for kind, number, *times in subject.pipe.messages(check=check):
        task = tasks.get(int(number))
        if task and kind == "sent":
            task.sent = float(times[0])
        elif task and kind == "ran":
            task.began, task.ended = map(float, times)
            left -= 1
        if not left:
            return


def passed_over(tasks: list[Ran]) -> list[float]:
    """Of each short task's wait, the seconds in which fewer than SLOTS tasks were running."""
    changes = sorted([(task.began, 1) for task in tasks] + [(task.ended, -1) for task in tasks])
    free: list[tuple[float, float]] = []  # stretches with a free slot
    running, since = 0, float("-inf")
    for at, change in changes:
        was_free = running < SLOTS
        running += change
        if was_free and running >= SLOTS:
            free.append((since, at))
        elif not was_free and running < SLOTS:
            since = at
    free.append((since, float("inf")))
    return [
        sum(max(0.0, min(end, task.began) - max(start, task.sent)) for start, end in free)
        for task in tasks
        if task.milliseconds == SHORT
    ]


def run(scene: Bench) -> Part:
    part = scene.part("mixed", "Mixed load: how long short tasks wait beside long ones")
    seconds = scene.seconds(SECONDS)
    table = Table(
        f"{round(seconds * A_SECOND):,} tasks in {seconds:.0f} s, four at a time: waits of those of 1 ms",
        ["milliseconds", "n", "p50", "p99", "max", "passed over", "longest beside a free worker"],
    )
    for name, tasks in alternated(scene, scene.subjects(PEERS), seconds).items():
        short = [task.began - task.sent for task in tasks if task.milliseconds == SHORT]
        beside = passed_over(tasks)
        shares = [1000 * percentile(short, share) for share in (0.5, 0.99, 1.0)]
        passed = sum(waited > PASSED_OVER_SECONDS for waited in beside)
        table.rows.append([name, len(short), *shares, passed, 1000 * max(beside)])
        part.figures |= summaries({name: short, f"{name}, beside a free worker": beside})
    table.notes.append(
        "Passed over: short tasks of whose wait more than 250 ms fell in a time in which fewer than four tasks ran. On "
        "a machine whose processors are busy elsewhere, such a wait may be theirs."
    )
    part.tables.append(table)
    part.notes = [
        "90 % take 1 ms, 9 % 50 ms, 1 % 2 s; 50 a second arrive at random moments, the same for all. Four at a "
        "time in one process; Rowlock's are threads.",
        *scene.excuses.values(),
    ]
    return part


def alternated(scene: Bench, subjects: list[Subject], seconds: float) -> dict[str, list[Ran]]:
    """All tasks of each, gathered in rounds; each round has its own plan."""
    rounds = scene.rounds()
    found: dict[str, list[Ran]] = {subject.name: [] for subject in subjects}
    for number in range(1, rounds + 1):
        for subject in subjects:
            try:
                tasks = ran(subject, schedule(seconds, seed=number))
            except Unfit as reason:
                scene.excuse(subject.name, reason)
                continue
            found[subject.name] += tasks
            waited = sorted(task.began - task.sent for task in tasks if task.milliseconds == SHORT)
            scene.say(
                f"mixed load, round {number} of {rounds}: {subject.name} p99 {1000 * percentile(waited, 0.99):.1f} ms"
            )
    return {name: tasks for name, tasks in found.items() if tasks}
