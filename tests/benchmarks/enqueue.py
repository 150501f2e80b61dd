"""Tasks a second that are enqueued while no worker is there: one by one, one in a transaction, a thousand at a time."""

from collections.abc import Callable
from functools import partial

from tests.benchmarks.bench import Bench
from tests.benchmarks.report import Part, Table, rates
from tests.benchmarks.subject import Rowlock, Subject, go

SECONDS = 2.0
ENQUEUERS = (1, 4, 8)
HOWS = {
    "single": "one by one, each its own transaction",
    "transaction": "one by one, inside the caller's `atomic`",
    "bulk": "a thousand at a time",
}


def enqueued(subject: Subject, how: str, enqueuers: int, seconds: float) -> float:
    """Tasks a second of so many processes that enqueue at the same time. Raises Unfit."""
    subject.empty()
    subject.pipe.forget()
    with subject.crew() as crew:
        processes = [subject.start(crew, "enqueue", how, seconds) for _ in range(enqueuers)]
        subject.pipe.await_word("ready", enqueuers, check=crew.check)
        for process in processes:
            go(process)
        told = subject.pipe.await_word("rate", enqueuers, check=crew.check)
    return sum(int(number) / float(took) for number, took in told)


def run(scene: Bench) -> Part:
    subjects = scene.subjects()
    part = scene.part("enqueue", "Enqueue: tasks a second written to the queue")
    for how, told in HOWS.items():
        for enqueuers in ENQUEUERS:
            compare(scene, part, [s for s in subjects if can(s, how)], how, told, enqueuers)
    part.tables.append(scaling(part))
    part.notes = [
        f"Processes that enqueue for {scene.seconds(SECONDS):.0f} s through each queue's own call, into an empty "
        "table, while no worker runs.",
        *scene.excuses.values(),
    ]
    return part


def can(subject: Subject, how: str) -> bool:
    """Whether it has such a call that is told apart from the others."""
    if how == "single":
        return True
    return isinstance(subject, Rowlock) or (how == "bulk" and subject.peer.has_bulk)


def compare(scene: Bench, part: Part, subjects: list[Subject], how: str, told: str, enqueuers: int) -> None:
    seconds = scene.seconds(SECONDS)
    measures: dict[str, Callable[[], float]] = {s.name: partial(enqueued, s, how, enqueuers, seconds) for s in subjects}
    label = f"{told}, {enqueuers} enqueuer{'s' if enqueuers > 1 else ''}"
    figures = scene.alternate(label, measures, scene.rounds(), "tasks/s")
    part.figures[label] = figures
    if len(figures) > 1:
        part.tables.append(rates(label[0].upper() + label[1:], "tasks a second", figures))


def scaling(part: Part) -> Table:
    """What more enqueuers bring to Rowlock: a bottleneck at the notification would show here."""
    table = Table(
        "Rowlock: tasks a second by the number of enqueuers",
        ["", *map(str, ENQUEUERS), f"{ENQUEUERS[-1]} / {ENQUEUERS[0]}"],
    )
    for told in HOWS.values():
        found = [sorted(figures["Rowlock"]) for label, figures in part.figures.items() if label.startswith(told)]
        middle = [values[len(values) // 2] for values in found if values]
        table.rows.append([told, *middle, middle[-1] / middle[0] if middle else None])
    return table
