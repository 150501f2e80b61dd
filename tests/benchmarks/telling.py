"""What it costs a task to tell how far it is: 100 reports and 100 log lines a second, in processor time of its worker.

Processor time, not tasks a second: the cost lies far below what one second differs from the next. `python -m
tests.benchmarks.telling [SECONDS [ROUNDS]]` measures it and keeps no report.
"""

import sys

import psutil

from tests.benchmarks import alone
from tests.benchmarks.bench import Bench
from tests.benchmarks.report import Part, Table
from tests.benchmarks.subject import HANDLERS, Rowlock

SECONDS = 10.0
A_SECOND = 100
KINDS = {"silent": 0, "reports": 1, "reports and log lines": 2}
ENQUEUE = "INSERT INTO tasks_task (task_path, args) VALUES (%s, jsonb_build_array(%s::int, %s::int))"


def run(scene: Bench) -> Part:
    part = scene.part("telling", "Telling: what reports and log lines cost a task")
    subject = Rowlock(scene.server.url, scene.pipe)
    subject.prepare()
    seconds = scene.seconds(SECONDS)
    figures = scene.alternate(
        "processor time", {kind: lambda kind=kind: measured(subject, kind, seconds) for kind in KINDS}, scene.rounds(),
        "% of a core",
    )  # fmt: skip
    table = Table(
        f"{A_SECOND} times a second, for {seconds:.0f} s", ["", "worker, % of a core, median", "more than silent"]
    )
    middle = {kind: sorted(values)[len(values) // 2] for kind, values in figures.items()}
    table.rows = [[kind, value, max(0.0, value - middle["silent"])] for kind, value in middle.items()]
    part.tables.append(table)
    part.figures = dict(figures)
    return part


def measured(subject: Rowlock, kind: str, seconds: float) -> float:
    """The share of a core that a worker's process takes while it runs one task of so many seconds."""
    subject.empty()
    subject.pipe.forget()
    with subject.crew() as crew:
        subject.execute(ENQUEUE, f"{HANDLERS}.tasks.tell", KINDS[kind], int(seconds * A_SECOND))
        subject.start_worker(crew, 1)
        [(supervisor, _)] = crew.members
        ended = []
        for word, *_ in subject.pipe.messages(check=crew.check):
            ended.append((word, processor_seconds(supervisor.pid)))
            if word == "ended":
                break
        crew.finish()
    began = next(spent for word, spent in ended if word == "began")
    return 100 * (ended[-1][1] - began) / seconds


def processor_seconds(supervisor: int) -> float:
    """Of its worker; its supervisor writes nothing of what tasks tell."""
    [worker] = psutil.Process(supervisor).children()
    spent = worker.cpu_times()
    return float(spent.user + spent.system)


if __name__ == "__main__":
    sys.exit(alone.main("telling", sys.argv[1:], ("--seconds", "--rounds")))
