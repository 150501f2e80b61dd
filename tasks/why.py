"""Why the tasks of one queue do not run: its READY and PROCESSING tasks, counted by their verdict."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import QuerySet

from tasks import stats
from tasks.models import Task
from tasks.stats import QueueNumbers
from tasks.verdicts import Finding, Verdict, decide, gather
from tasks.verdicts.finding import STUCK
from tasks.verdicts.words import command

SAMPLE = 200  # rows of each kind that are judged one by one
COUNT_CAP = 10_000


@dataclass(frozen=True)
class Reason:
    """One verdict: how many of the judged tasks have it, and the finding and the id of the first."""

    verdict: Verdict
    number: int
    first: Finding
    task_id: int


@dataclass(frozen=True)
class Why:
    """One queue. Not `is_complete`: only the first of its tasks were judged, `judged` of them."""

    queue: QueueNumbers
    reasons: list[Reason]
    judged: int
    is_complete: bool
    command: str


def look(queue_name: str) -> Why:
    """Judge the first tasks of the queue in the order of the claim, and those that workers hold."""
    samples = [list(kind[:SAMPLE]) for kind in kinds(queue_name)]
    tasks = [task for sample in samples for task in sample]
    facts = gather(tasks)
    return Why(
        queue=stats.waiting(queue_name, facts.workers, cap=COUNT_CAP),
        reasons=reasons((task, decide(task, facts)) for task in tasks),
        judged=len(tasks),
        is_complete=all(len(sample) < SAMPLE for sample in samples),
        command=command("run_worker", "--queue", queue_name),
    )


def kinds(queue_name: str) -> "list[QuerySet[Task]]":
    """The rows that wait without a key, those with one, and those that are held; each in the order of an index."""
    light = Task.objects.defer("args", "kwargs", "return_value")  # which no verdict looks at
    ready = light.ready().filter(queue_name=queue_name)
    return [
        ready.filter(ordering_key__isnull=True).order_by("-priority", "run_after", "id"),
        ready.filter(ordering_key__isnull=False).order_by("ordering_key", "id"),
        light.processing().filter(queue_name=queue_name).order_by("claimed_by"),
    ]


def reasons(judged: Iterable[tuple[Task, Finding]]) -> list[Reason]:
    """The verdicts with their numbers: those first that a person may have to do something about, then the frequent."""
    found: dict[Verdict, Reason] = {}
    for task, finding in judged:
        known = found.get(finding.verdict)
        number = known.number + 1 if known else 1
        first, task_id = (known.first, known.task_id) if known else (finding, task.pk)
        found[finding.verdict] = Reason(finding.verdict, number, first, task_id)
    return sorted(found.values(), key=lambda reason: (reason.verdict not in STUCK, -reason.number))
