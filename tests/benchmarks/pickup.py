"""From the call that enqueues a task until an idle worker runs it, one task at a time."""

import random
import time

from tests.benchmarks.bench import Bench
from tests.benchmarks.peers.environment import Unfit
from tests.benchmarks.report import Part, summaries, waits
from tests.benchmarks.subject import Subject

TASKS = 2000
WARM_UP = 5


def picked_up(subject: Subject, tasks: int) -> list[float]:
    """Seconds from the enqueue call to the handler, of each task. Raises Unfit."""
    subject.empty()
    subject.pipe.forget()
    with subject.crew() as crew:
        subject.start_worker(crew, 1)
        sender = subject.start(crew, "send")
        found = []
        for number in range(tasks + WARM_UP):
            assert sender.stdin
            sender.stdin.write(f"{number} 0\n".encode())
            sender.stdin.flush()
            told: dict[str, float] = {}
            for kind, *words in subject.pipe.messages(check=crew.check):
                if kind in ("sent", "ran"):
                    told[kind] = float(words[1])
                if len(told) == 2:
                    break
            found.append(told["ran"] - told["sent"])
            time.sleep(random.uniform(0.005, 0.015))  # until it is idle again, and not in step with it
    return found[WARM_UP:]


def run(scene: Bench) -> Part:
    part = scene.part("pickup", "Pickup: from the call that enqueues until an idle worker runs the task")
    figures = alternated(scene, scene.subjects())
    part.tables.append(waits("One task at a time, one worker", figures))
    part.notes = [
        "Both processes read one clock. A queue without notifications (django-tasks-db, looking every 50 ms) is "
        "given fewer tasks. Between two tasks there is a pause of 5 to 15 ms.",
        *scene.excuses.values(),
    ]
    part.figures = summaries(figures)
    return part


def alternated(scene: Bench, subjects: list[Subject]) -> dict[str, list[float]]:
    """All waits of each, gathered in rounds."""
    rounds = scene.rounds()
    found: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for number in range(1, rounds + 1):
        for subject in subjects:
            if subject.name not in found:
                continue
            tasks = max(1, min(scene.tasks(TASKS), subject.peer.pickups) // rounds)
            try:
                waited = picked_up(subject, tasks)
            except Unfit as reason:
                scene.excuse(subject.name, reason)
                del found[subject.name]
            else:
                found[subject.name] += waited
                scene.say(
                    f"pickup, round {number} of {rounds}: {subject.name} {1000 * sorted(waited)[tasks // 2]:.2f} ms"
                )
    return found
